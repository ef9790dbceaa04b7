#define BERTH_ISA amx
#define BERTH_AMX
#include "models/ops/cpu_kernels.inc"
