#include "models/kernels/cuda/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace berth::cuda {

std::string LibraryPath() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "libberth_cuda.so").string();
}

absl::StatusOr<const Kernels*> LoadLibrary(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto entry = reinterpret_cast<decltype(&BerthCudaKernels)>(dlsym(library, "BerthCudaKernels"));
  if (entry == nullptr) return absl::FailedPreconditionError(absl::StrCat(path, " has no BerthCudaKernels"));
  const Kernels* kernels = entry();
  if (kernels->size_bytes != static_cast<int64_t>(sizeof(Kernels))) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is of another version: a table of ", kernels->size_bytes,
                                                      " bytes, not ", sizeof(Kernels)));
  }
  return kernels;
}

}  // namespace berth::cuda
