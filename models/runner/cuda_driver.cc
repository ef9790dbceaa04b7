#include "models/runner/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace berth {
namespace {

// LibTorch's wheel and the kernels are of CUDA 13.
constexpr int kNeededCuda = 13000;
constexpr int kNeededCapability = 80;
constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

// CUdevice_attribute.
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

constexpr int kNoDevice = 100;              // CUDA_ERROR_NO_DEVICE
constexpr int kSystemDriverMismatch = 803;  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

std::string CudaVersion(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

std::string HintFor(int error) {
  if (error == kNoDevice) return "; in a container, ask for a GPU (docker run --gpus=all)";
  if (error == kSystemDriverMismatch) return "; the driver was updated: restart the machine";
  return "";
}

absl::Status DriverError(const CudaDriver& driver, absl::string_view call, int error) {
  const char* text = nullptr;
  if (driver.get_error_string(error, &text) != 0 || text == nullptr) text = "unknown error";
  return absl::FailedPreconditionError(
      absl::StrCat("NVIDIA's driver: ", call, ": ", text, " (error ", error, ")", HintFor(error)));
}

absl::Status NoGpuVisible() {
  const char* const visible = std::getenv(kVisible);
  return absl::FailedPreconditionError(
      absl::StrCat("the process sees no GPU", visible == nullptr ? "" : absl::StrCat(": ", kVisible, "=", visible)));
}

template <typename Function>
bool Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

absl::StatusOr<CudaDriver> LoadCudaDriver(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return absl::NotFoundError(absl::StrCat("NVIDIA's driver is not installed: ", dlerror()));
  CudaDriver driver;
  const bool complete =
      Find(loaded, "cuInit", &driver.init) && Find(loaded, "cuDriverGetVersion", &driver.driver_get_version) &&
      Find(loaded, "cuDeviceGetCount", &driver.device_get_count) && Find(loaded, "cuDeviceGet", &driver.device_get) &&
      Find(loaded, "cuDeviceGetName", &driver.device_get_name) &&
      Find(loaded, "cuDeviceGetAttribute", &driver.device_get_attribute) &&
      Find(loaded, "cuDeviceTotalMem_v2", &driver.device_total_mem) &&
      Find(loaded, "cuGetErrorString", &driver.get_error_string);
  if (!complete) return absl::FailedPreconditionError(absl::StrCat(library, " is not NVIDIA's driver: ", dlerror()));
  return driver;
}

std::string Gpu::ToString() const {
  return absl::StrCat(name, ", compute capability ", capability / 10, ".", capability % 10, ", ",
                      absl::StrFormat("%.1f GiB", static_cast<double>(memory_bytes) / (1 << 30)), ", driver for CUDA ",
                      CudaVersion(cuda_version));
}

absl::StatusOr<Gpu> InspectGpu(const CudaDriver& driver) {
  Gpu gpu;
  // An old driver says its version although it may refuse to start.
  if (driver.driver_get_version(&gpu.cuda_version) == 0 && gpu.cuda_version < kNeededCuda) {
    return absl::FailedPreconditionError(absl::StrCat("NVIDIA's driver supports CUDA ", CudaVersion(gpu.cuda_version),
                                                      ", but CUDA ", CudaVersion(kNeededCuda),
                                                      " is needed: install driver 580 or later"));
  }
  if (const int error = driver.init(0); error != 0) return DriverError(driver, "it does not start", error);
  int count = 0;
  if (const int error = driver.device_get_count(&count); error != 0) {
    return DriverError(driver, "it does not count the GPUs", error);
  }
  if (count == 0) return NoGpuVisible();
  int device = 0, major = 0, minor = 0;
  char name[256] = {};
  size_t bytes = 0;
  for (const int error :
       {driver.device_get(&device, 0), driver.device_get_name(name, sizeof(name) - 1, device),
        driver.device_get_attribute(&major, kCapabilityMajor, device),
        driver.device_get_attribute(&minor, kCapabilityMinor, device), driver.device_total_mem(&bytes, device)}) {
    if (error != 0) return DriverError(driver, "it does not describe the GPU", error);
  }
  gpu.name = name;
  gpu.capability = major * 10 + minor;
  gpu.memory_bytes = static_cast<int64_t>(bytes);
  if (gpu.capability < kNeededCapability) {
    return absl::FailedPreconditionError(absl::StrCat(gpu.name, " has compute capability ", major, ".", minor,
                                                      ", but the kernels need ", kNeededCapability / 10, ".",
                                                      kNeededCapability % 10, " or more"));
  }
  return gpu;
}

absl::Status ShowOnlyGpu(int index) {
  std::string chosen = absl::StrCat(index);
  if (const char* const visible = std::getenv(kVisible); visible != nullptr) {
    const std::vector<std::string> gpus = absl::StrSplit(visible, ',', absl::SkipWhitespace());
    if (index >= static_cast<int>(gpus.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("cuda:", index, " is not among the ", gpus.size(), " GPUs of ", kVisible, "=", visible));
    }
    chosen = gpus[index];
  }
  setenv(kVisible, chosen.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

}  // namespace berth
