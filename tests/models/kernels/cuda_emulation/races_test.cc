// Kernels with planted races end the program, in every order of their threads. Their twins run to the end.
#include "tests/models/kernels/cuda_emulation/races.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/kernels/cuda_emulation/device_memory.h"
#include "tests/models/kernels/cuda_emulation/planted_races.h"

namespace cuda_emulation {
namespace {

struct Turns {
  Order order;
  uint32_t seed;
};
constexpr Turns kTurns[] = {
    {Order::kAscending, 1}, {Order::kDescending, 1}, {Order::kRandom, 1}, {Order::kRandom, 2}, {Order::kRandom, 3}};

class RacesTest : public ::testing::TestWithParam<PlantedRace> {
 protected:
  void TearDown() override { SetOrder(Order::kAscending); }
};

TEST_P(RacesTest, IsFoundInEveryOrder) {
  for (const Turns& turns : kTurns) {
    SetOrder(turns.order, turns.seed);
    EXPECT_DEATH(GetParam().run(), "a race: .*addr2line") << turns.seed;
  }
}

TEST_P(RacesTest, IsNotFoundInItsTwin) {
  for (const Turns& turns : kTurns) {
    SetOrder(turns.order, turns.seed);
    GetParam().run_correct();
  }
}

INSTANTIATE_TEST_SUITE_P(Planted, RacesTest, ::testing::ValuesIn(PlantedRaces()),
                         [](const auto& info) { return std::string(info.param.name); });

// What the device's memory is to the host.
TEST(DeviceMemoryTest, IsTheHostsOnlyWhileTheDeviceWorks) {
  constexpr size_t kBytes = 8192;
  auto* const bytes = static_cast<volatile char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0));
  ASSERT_NE(bytes, MAP_FAILED);
  {
    const DeviceMemory memory(const_cast<char*>(bytes), kBytes);
    EXPECT_EXIT(bytes[5000] = 1, ::testing::KilledBySignal(SIGSEGV), "");
    {
      const DeviceAccess access;
      const DeviceAccess another;
      bytes[5000] = 1;
    }
    EXPECT_EXIT(exit(bytes[0]), ::testing::KilledBySignal(SIGSEGV), "");
  }
  EXPECT_EQ(bytes[5000], 1);
  munmap(const_cast<char*>(bytes), kBytes);
}

}  // namespace
}  // namespace cuda_emulation
