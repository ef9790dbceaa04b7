#define BERTH_ISA avx512
#include "models/ops/cpu_kernels.inc"
