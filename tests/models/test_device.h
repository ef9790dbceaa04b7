// The GPU on which tests run their kernels instead of on the CPU, as BERTH_TEST_DEVICE names it: cuda or cuda:N. The
// kernels' libraries lie in $BERTH_BIN/server, or else beside the program. A GPU that cannot be used ends the program
// with 1, so no test is skipped. Single-threaded.
#ifndef BERTH_TESTS_MODELS_TEST_DEVICE_H_
#define BERTH_TESTS_MODELS_TEST_DEVICE_H_

#include <c10/core/Device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/ops/cuda_library.h"
#include "models/runner/device.h"

namespace berth {

struct TestDevice {
  at::Device device;
  const ops::cuda::Kernels* kernels;
  ops::cuda::GraphRecorder* recorder;
};

inline std::string TestLibraryPath(const std::string& name) {
  const char* const folder = std::getenv("BERTH_BIN");
  return folder != nullptr ? std::string(folder) + "/server/" + name : ops::cuda::LibraryPath(name);
}

inline absl::StatusOr<TestDevice> OpenTestDevice(const std::string& name) {
  const absl::StatusOr<DeviceChoice> choice = ChooseDevice(name);
  if (!choice.ok()) return choice.status();
  if (!choice->on_gpu()) return absl::InvalidArgumentError("it is not a GPU: cuda or cuda:N");
  const absl::StatusOr<at::Device> device = OpenDevice(choice->device);
  if (!device.ok()) return device.status();
  const auto kernels = ops::cuda::LoadLibrary(TestLibraryPath("libberth_cuda.so"));
  if (!kernels.ok()) return kernels.status();
  const auto recorder = ops::cuda::LoadGraphLibrary(TestLibraryPath("libberth_cuda_graph.so"));
  if (!recorder.ok()) return recorder.status();
  return TestDevice{*device, *kernels, *recorder};
}

// Null: the variable is not set.
inline const TestDevice* GetTestDevice() {
  static const auto* const device = []() -> const TestDevice* {
    const char* const name = std::getenv("BERTH_TEST_DEVICE");
    if (name == nullptr) return nullptr;
    const absl::StatusOr<TestDevice> opened = OpenTestDevice(name);
    if (opened.ok()) return new TestDevice(*opened);
    std::fprintf(stderr, "BERTH_TEST_DEVICE=%s: %s\n", name, std::string(opened.status().message()).c_str());
    std::exit(1);
  }();
  return device;
}

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_TEST_DEVICE_H_
