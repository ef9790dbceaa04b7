#define BERTH_ISA amx_emulated
#define BERTH_AMX
#define BERTH_AMX_EMULATED
#include "models/ops/cpu_kernels.inc"
