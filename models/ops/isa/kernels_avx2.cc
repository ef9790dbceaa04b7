#define BERTH_ISA avx2
#include "models/ops/cpu_kernels.inc"
