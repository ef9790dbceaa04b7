#include "models/kernels/cuda/dispatch.h"

namespace berth::cuda {
namespace {

const Kernels* current = nullptr;

}  // namespace

const Kernels* GetKernels() { return current; }

void UseKernels(const Kernels* kernels) { current = kernels; }

}  // namespace berth::cuda
