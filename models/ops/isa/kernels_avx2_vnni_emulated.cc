#define BERTH_ISA avx2_vnni_emulated
#define BERTH_EMULATED_VNNI
#include "models/ops/cpu_kernels.inc"
