#define BERTH_ISA avx512_vnni
#include "models/ops/cpu_kernels.inc"
