#define BERTH_ISA avx512_bf16
#include "models/kernels/cpu/kernels.inc"
