#define BERTH_ISA amx_emulated
#define BERTH_AMX
#define BERTH_AMX_EMULATED
#include "models/kernels/cpu/kernels.inc"
