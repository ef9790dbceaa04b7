// Loads libberth_cuda.so and libberth_cuda_graph.so. Thread-compatible.
#ifndef BERTH_MODELS_OPS_CUDA_LIBRARY_H_
#define BERTH_MODELS_OPS_CUDA_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "models/kernels/cuda/graph.h"
#include "models/ops/cuda_kernels.h"

namespace berth::ops::cuda {

// Returns the path of a library, which is beside the program.
std::string LibraryPath(const std::string& name);

// Returns the table of libberth_cuda.so. A loaded library stays loaded for the process's life. FAILED_PRECONDITION: it
// cannot be loaded, or it is not of this version.
absl::StatusOr<const Kernels*> LoadLibrary(const std::string& path);

// Returns the recorder of libberth_cuda_graph.so. REQUIRES: libtorch_cuda.so is loaded.
absl::StatusOr<GraphRecorder*> LoadGraphLibrary(const std::string& path);

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_CUDA_LIBRARY_H_
