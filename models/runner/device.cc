#include "models/runner/device.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "models/ops/cuda_dispatch.h"
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

absl::StatusOr<std::string> LoadDeviceKernels(const at::Device& device) {
  if (!device.is_cuda()) return std::string();
  const absl::StatusOr<const ops::cuda::Kernels*> kernels =
      ops::cuda::LoadLibrary(ops::cuda::LibraryPath("libberth_cuda.so"));
  if (!kernels.ok()) return kernels.status();
  ops::cuda::UseKernels(*kernels);
  return std::string((*kernels)->name);
}

absl::Status LoadGraphs(const at::Device& device) {
  if (!device.is_cuda()) {
    return absl::FailedPreconditionError(absl::StrCat("cuda_graphs: runs on device cuda, not on ", device.str()));
  }
  try {
    const absl::StatusOr<ops::cuda::GraphRecorder*> recorder =
        ops::cuda::LoadGraphLibrary(ops::cuda::LibraryPath("libberth_cuda_graph.so"));
    if (!recorder.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("cuda_graphs: ", recorder.status().message()));
    }
    ops::cuda::UseGraphRecorder(*recorder);
    return absl::OkStatus();
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
