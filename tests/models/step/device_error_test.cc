#include "models/step/device_error.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <string>

namespace berth {
namespace {

absl::Status Of(int32_t cuda_error) {
  return DeviceError("step failed", c10::AcceleratorError({__func__, __FILE__, 1}, cuda_error, "CUDA error: text"));
}

TEST(DeviceErrorTest, AStickyErrorIsTheLossOfTheDevice) {
  EXPECT_EQ(Of(700), absl::DataLossError("step failed: CUDA error: text"));
  EXPECT_EQ(Of(719).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Of(214).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Of(999).code(), absl::StatusCode::kDataLoss);
}

TEST(DeviceErrorTest, OtherErrorsPass) {
  EXPECT_EQ(Of(1).code(), absl::StatusCode::kInternal);    // invalid value
  EXPECT_EQ(Of(901).code(), absl::StatusCode::kInternal);  // a capture that was broken off
  EXPECT_EQ(DeviceError("x", std::bad_alloc()).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(DeviceError("x", c10::OutOfMemoryError({__func__, __FILE__, 1}, "CUDA out of memory")),
            absl::ResourceExhaustedError("x: CUDA out of memory"));
}

}  // namespace
}  // namespace berth
