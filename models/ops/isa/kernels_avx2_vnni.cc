#define BERTH_ISA avx2_vnni
#include "models/ops/cpu_kernels.inc"
