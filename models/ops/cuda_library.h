// Loads libberth_cuda.so and libberth_cuda_graph.so. Thread-compatible.
#ifndef BERTH_MODELS_OPS_CUDA_LIBRARY_H_
#define BERTH_MODELS_OPS_CUDA_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "models/kernels/cuda/graph.h"
#include "models/ops/cuda_kernels.h"

namespace berth::ops::cuda {

// Where a library is looked for: beside the program.
std::string LibraryPath(const std::string& name);

// The table of libberth_cuda.so. What is loaded stays so for the process's life. FAILED_PRECONDITION: it cannot be
// loaded, or it is not of this version.
absl::StatusOr<const Kernels*> LoadLibrary(const std::string& path);

// What libberth_cuda_graph.so records with. REQUIRES: libtorch_cuda.so is loaded.
absl::StatusOr<GraphRecorder*> LoadGraphLibrary(const std::string& path);

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_CUDA_LIBRARY_H_
