#define BERTH_ISA baseline
#include "models/ops/cpu_kernels.inc"
