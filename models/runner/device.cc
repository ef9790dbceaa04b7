#include "models/runner/device.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "models/ops/cuda_library.h"
#include "models/step/tensor_storage.h"

namespace berth {

absl::StatusOr<at::Device> OpenDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("device: \"", name, "\" is neither cpu nor cuda"));
  }
  // Its static initialisers register CUDA with ATen; it stays loaded for the process's life.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("device: cuda: ", dlerror()));
  }
  if (!at::hasCUDA()) return absl::FailedPreconditionError("device: cuda: no GPU found");
  return at::Device(at::kCUDA, 0);
}

absl::StatusOr<const ops::cuda::Kernels*> LoadDeviceKernels(const at::Device& device) {
  if (!device.is_cuda()) return nullptr;
  return ops::cuda::LoadLibrary(ops::cuda::LibraryPath("libberth_cuda.so"));
}

absl::StatusOr<ops::cuda::GraphRecorder*> LoadGraphRecorder(const at::Device& device) {
  if (!device.is_cuda()) {
    return absl::FailedPreconditionError(absl::StrCat("cuda_graphs: runs on device cuda, not on ", device.str()));
  }
  try {
    absl::StatusOr<ops::cuda::GraphRecorder*> recorder =
        ops::cuda::LoadGraphLibrary(ops::cuda::LibraryPath("libberth_cuda_graph.so"));
    if (recorder.ok()) return recorder;
    return absl::FailedPreconditionError(absl::StrCat("cuda_graphs: ", recorder.status().message()));
  } catch (const c10::Error& error) {
    return absl::FailedPreconditionError(absl::StrCat("cuda_graphs: ", error.what_without_backtrace()));
  }
}

absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateDeviceStorage(const at::Device& device, int64_t size_bytes) {
  if (device.is_cpu()) return CreateHostStorage(size_bytes);
  try {
    return std::make_unique<TensorStorage>(
        at::empty({size_bytes}, at::TensorOptions().dtype(at::kByte).device(device)));
  } catch (const c10::Error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve an arena of ", size_bytes, " bytes on ",
                                                     device.str(), ": ", error.what_without_backtrace()));
  }
}

}  // namespace berth
