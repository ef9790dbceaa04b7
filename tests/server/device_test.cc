// What of the device can be tested without a GPU.
#include "server/device.h"

#include <gtest/gtest.h>

#include "server/process/exit_codes.h"
#include "server/process/logging.h"

namespace berth {
namespace {

TEST(DeviceTest, ALostDeviceEndsTheProcessWithACodeOfItsOwn) {
  const auto end = [] {
    SetUpLogging("info", "text");
    EndOnLostDevice(absl::DataLossError("step failed: an illegal memory access was encountered"));
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(kDeviceLostExitCode),
              "the device is lost, so the server ends with exit code 3: step failed: an illegal memory access");
}

TEST(DeviceTest, TheCpuNeedsNoDriver) {
  Config config;
  config.model.model_dir = "/m";
  config.model.device = "cpu";
  const auto choice = SetUpDevice(&config);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_FALSE(choice->on_gpu());
  EXPECT_EQ(config.model.device, "cpu");
  EXPECT_EQ(config.engine.scheduler.max_step_tokens, 512);
}

TEST(DeviceTest, FlagsAreCheckedForTheDeviceThatWasChosen) {
  Config config;
  config.model.model_dir = "/m";
  config.model.device = "cpu";
  config.prefill_chunk_tokens = 1000;
  EXPECT_EQ(SetUpDevice(&config).status().message(), "--prefill_chunk_tokens: 1000 is more than --max_step_tokens=512");
}

}  // namespace
}  // namespace berth
