#include "models/runner/device.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>

#include <exception>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/ops/checkpoint/checkpoint.h"
#include "models/ops/cuda_library.h"
#include "models/runner/cuda_driver.h"
#include "models/step/device_error.h"
#include "models/step/tensor_storage.h"

namespace berth {
namespace {

constexpr absl::string_view kCuda = "cuda";

// Where OpenDevice's driver and libraries work: the GPU and its memory.
absl::StatusOr<DeviceChoice> ChooseGpu() {
  const absl::StatusOr<CudaDriver> driver = LoadCudaDriver();
  if (!driver.ok()) return driver.status();
  const absl::StatusOr<Gpu> gpu = InspectGpu(*driver);
  if (!gpu.ok()) return gpu.status();
  const absl::StatusOr<at::Device> device = OpenDevice(std::string(kCuda));
  if (!device.ok()) return device.status();
  const absl::StatusOr<DeviceMemory> memory = GetDeviceMemory(*device);
  if (!memory.ok()) return memory.status();
  return DeviceChoice{.device = std::string(kCuda), .gpu = gpu->ToString(), .memory = *memory};
}

// What LibTorch says when it is asked for the GPU that it does not find.
std::string WhyNoGpu() {
  try {
    at::empty({1}, at::TensorOptions().device(at::kCUDA));
    return "no GPU found";
  } catch (const std::exception& error) {
    return std::string(DeviceError("no GPU found", error).message());
  }
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& name) {
  if (name == "cpu") return DeviceChoice();
  absl::string_view index = name;
  int number = -1;
  if (absl::ConsumePrefix(&index, "cuda:") && absl::SimpleAtoi(index, &number) && number >= 0) {
    if (absl::Status s = ShowOnlyGpu(number); !s.ok()) return s;
  } else if (name != "auto" && name != kCuda) {
    return absl::InvalidArgumentError(absl::StrCat("device: \"", name, "\" is not auto, cpu, cuda or cuda:N"));
  }
  absl::StatusOr<DeviceChoice> choice = ChooseGpu();
  if (choice.ok() && name == "auto") {
    // Without them a GPU works, but slowly.
    const auto kernels = LoadDeviceKernels(at::Device(at::kCUDA, 0));
    if (!kernels.ok()) choice = kernels.status();
  }
  if (choice.ok()) return choice;
  if (name != "auto") {
    return absl::FailedPreconditionError(absl::StrCat("device: ", name, ": ", choice.status().message()));
  }
  DeviceChoice cpu;
  if (!absl::IsNotFound(choice.status())) cpu.gpu_refused = std::string(choice.status().message());
  return cpu;
}

absl::StatusOr<DeviceMemory> GetDeviceMemory(const at::Device& device) {
  try {
    const auto [free, total] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
    return DeviceMemory{.free_bytes = static_cast<int64_t>(free), .total_bytes = static_cast<int64_t>(total)};
  } catch (const std::exception& error) {
    return DeviceError("the GPU's memory cannot be measured", error);
  }
}

absl::Status ReturnFreeMemory(const at::Device& device) {
  try {
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
    if (allocator->initialized()) allocator->emptyCache();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return DeviceError("the GPU's memory cannot be returned", error);
  }
}

void SumInFloat32() {
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  at::globalContext().setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false);
}

absl::StatusOr<at::Device> OpenDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("device: \"", name, "\" is neither cpu nor cuda"));
  }
  // Its static initialisers register CUDA with ATen; it stays loaded for the process's life.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(dlerror(), "; LD_LIBRARY_PATH must name the folder of CUDA's libraries"));
  }
  if (!at::hasCUDA()) return absl::FailedPreconditionError(WhyNoGpu());
  SumInFloat32();
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

absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateDeviceStorage(const at::Device& device, int64_t size_bytes,
                                                                  const ops::cuda::Kernels* kernels) {
  if (device.is_cpu()) return CreateHostStorage(size_bytes);
  try {
    TensorStorage::Converter converter;
    if (kernels != nullptr) converter = ops::CheckpointConverter(kernels);
    return std::make_unique<TensorStorage>(at::empty({size_bytes}, at::TensorOptions().dtype(at::kByte).device(device)),
                                           std::move(converter));
  } catch (const c10::Error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve an arena of ", size_bytes, " bytes on ",
                                                     device.str(), ": ", error.what_without_backtrace()));
  }
}

}  // namespace berth
