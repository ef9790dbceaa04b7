#define BERTH_ISA avx2
#include "models/kernels/cpu/kernels.inc"
