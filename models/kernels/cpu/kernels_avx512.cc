#define BERTH_ISA avx512
#include "models/kernels/cpu/kernels.inc"
