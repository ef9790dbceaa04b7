#include "models/ops/cuda_dispatch.h"

namespace berth::ops::cuda {
namespace {

const Kernels* current = nullptr;
GraphRecorder* current_recorder = nullptr;

}  // namespace

const Kernels* GetKernels() { return current; }

void UseKernels(const Kernels* kernels) { current = kernels; }

GraphRecorder* GetGraphRecorder() { return current_recorder; }

void UseGraphRecorder(GraphRecorder* recorder) { current_recorder = recorder; }

}  // namespace berth::ops::cuda
