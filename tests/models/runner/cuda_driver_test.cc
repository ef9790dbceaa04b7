// Drivers of functions that the test fills in: each cause for which a GPU cannot be used has a message of its own.
#include "models/runner/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace berth {
namespace {

using ::testing::HasSubstr;

// What the driver says.
struct Facts {
  int init = 0;
  int version = 13000;
  int count = 1;
  int major = 9;
  int minor = 0;
};
Facts facts;

CudaDriver FakeDriver() {
  return {.init = [](unsigned) { return facts.init; },
          .driver_get_version =
              [](int* version) {
                *version = facts.version;
                return 0;
              },
          .device_get_count =
              [](int* count) {
                *count = facts.count;
                return 0;
              },
          .device_get =
              [](int* device, int ordinal) {
                *device = 7 + ordinal;
                return 0;
              },
          .device_get_name =
              [](char* name, int length, int device) {
                if (device != 7) return 101;
                std::strncpy(name, "NVIDIA H200", static_cast<size_t>(length));
                return 0;
              },
          .device_get_attribute =
              [](int* value, int attribute, int) {
                *value = attribute == 75 ? facts.major : facts.minor;
                return 0;
              },
          .device_total_mem =
              [](size_t* bytes, int) {
                *bytes = size_t{140} << 30;
                return 0;
              },
          .get_error_string =
              [](int error, const char** text) {
                *text = error == 100 ? "no CUDA-capable device is detected" : nullptr;
                return error == 100 ? 0 : 1;
              }};
}

std::string WhyNot(const Facts& said) {
  facts = said;
  const absl::StatusOr<Gpu> gpu = InspectGpu(FakeDriver());
  return gpu.ok() ? "" : std::string(gpu.status().message());
}

TEST(CudaDriverTest, DescribesTheGpu) {
  facts = {};
  const absl::StatusOr<Gpu> gpu = InspectGpu(FakeDriver());
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_EQ(gpu->capability, 90);
  EXPECT_EQ(gpu->ToString(), "NVIDIA H200, compute capability 9.0, 140.0 GiB, driver for CUDA 13.0");
}

TEST(CudaDriverTest, EachCauseHasItsMessage) {
  EXPECT_EQ(WhyNot({.init = 100, .version = 12040}),
            "NVIDIA's driver supports CUDA 12.4, but CUDA 13.0 is needed: install driver 580 or later");
  EXPECT_EQ(WhyNot({.init = 100}),
            "NVIDIA's driver: it does not start: no CUDA-capable device is detected (error 100); in a container, ask "
            "for a GPU (docker run --gpus=all)");
  EXPECT_EQ(WhyNot({.init = 803}),
            "NVIDIA's driver: it does not start: unknown error (error 803); the driver was updated: restart the "
            "machine");
  EXPECT_EQ(WhyNot({.major = 7, .minor = 5}),
            "NVIDIA H200 has compute capability 7.5, but the kernels need 8.0 or more");
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(WhyNot({.count = 0}), "the process sees no GPU");
  setenv("CUDA_VISIBLE_DEVICES", "9", 1);
  EXPECT_EQ(WhyNot({.count = 0}), "the process sees no GPU: CUDA_VISIBLE_DEVICES=9");
}

TEST(CudaDriverTest, WithoutADriver) {
  const absl::Status status = LoadCudaDriver("/nowhere/libcuda.so.1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_EQ(LoadCudaDriver("libc.so.6").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CudaDriverTest, ShowsOneGpuOfThoseThatAreVisible) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_TRUE(ShowOnlyGpu(3).ok());
  EXPECT_STREQ(std::getenv("CUDA_VISIBLE_DEVICES"), "3");
  setenv("CUDA_VISIBLE_DEVICES", "5,GPU-1234", 1);
  EXPECT_EQ(ShowOnlyGpu(2).message(), "cuda:2 is not among the 2 GPUs of CUDA_VISIBLE_DEVICES=5,GPU-1234");
  ASSERT_TRUE(ShowOnlyGpu(1).ok());
  EXPECT_STREQ(std::getenv("CUDA_VISIBLE_DEVICES"), "GPU-1234");
}

}  // namespace
}  // namespace berth
