#define BERTH_ISA baseline
#include "models/kernels/cpu/kernels.inc"
