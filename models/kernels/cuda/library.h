// Loads libberth_cuda.so. Thread-compatible.
#ifndef BERTH_MODELS_KERNELS_CUDA_LIBRARY_H_
#define BERTH_MODELS_KERNELS_CUDA_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "models/kernels/cuda/kernels.h"

namespace berth::cuda {

// Where it is looked for: beside the program.
std::string LibraryPath();

// Its table; it stays loaded for the process's life. FAILED_PRECONDITION: it cannot be loaded, or it is not of this
// version.
absl::StatusOr<const Kernels*> LoadLibrary(const std::string& path);

}  // namespace berth::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_LIBRARY_H_
