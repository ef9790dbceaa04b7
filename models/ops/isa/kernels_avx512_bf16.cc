#define BERTH_ISA avx512_bf16
#include "models/ops/cpu_kernels.inc"
