#define BERTH_ISA amx
#define BERTH_AMX
#include "models/kernels/cpu/kernels.inc"
