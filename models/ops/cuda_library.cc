#include "models/ops/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace berth::ops::cuda {
namespace {

// The symbol of a library, a function of the type Function.
template <typename Function>
absl::StatusOr<Function*> LoadSymbol(const std::string& path, const char* symbol) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto function = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (function == nullptr) return absl::FailedPreconditionError(absl::StrCat(path, " has no ", symbol));
  return function;
}

}  // namespace

std::string LibraryPath(const std::string& name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / name).string();
}

absl::StatusOr<GraphRecorder*> LoadGraphLibrary(const std::string& path) {
  const auto entry = LoadSymbol<decltype(BerthCudaGraphRecorder)>(path, "BerthCudaGraphRecorder");
  if (!entry.ok()) return entry.status();
  return (*entry)();
}

absl::StatusOr<const Kernels*> LoadLibrary(const std::string& path) {
  const auto entry = LoadSymbol<decltype(BerthCudaKernels)>(path, "BerthCudaKernels");
  if (!entry.ok()) return entry.status();
  const Kernels* kernels = (*entry)();
  if (kernels->size_bytes != static_cast<int64_t>(sizeof(Kernels))) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is of another version: a table of ", kernels->size_bytes,
                                                      " bytes, not ", sizeof(Kernels)));
  }
  return kernels;
}

}  // namespace berth::ops::cuda
