// A GPU's memory and ATen's settings, with an allocator that stands for a GPU's.
#include "models/runner/device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <utility>

namespace berth {
namespace {

class FakeAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { ++num_emptied; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override { return {3000, 4000}; }

  int num_emptied = 0;
};

// After the warm-up, the memory is measured for the log. What the warm-up's steps needed must stay with the allocator.
TEST(DeviceTest, OnlyReturningMemoryEmptiesTheAllocator) {
  static FakeAllocator* const allocator = new FakeAllocator();
  c10::SetAllocator(c10::kPrivateUse1, allocator);
  const at::Device device(c10::kPrivateUse1, 0);
  const auto memory = GetDeviceMemory(device);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->free_bytes, 3000);
  EXPECT_EQ(memory->total_bytes, 4000);
  EXPECT_EQ(allocator->num_emptied, 0);
  EXPECT_TRUE(ReturnFreeMemory(device).ok());
  EXPECT_EQ(allocator->num_emptied, 1);
}

TEST(DeviceTest, ProductsOf16BitNumbersAddInFloat32) {
  SumInFloat32();
  const auto expected = at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK;
  EXPECT_EQ(at::globalContext().allowBF16ReductionCuBLAS(), expected);
  EXPECT_EQ(at::globalContext().allowFP16ReductionCuBLAS(), expected);
}

// All graphs are recorded on one stream, and the products in them use cuBLAS's workspace of that stream. LibTorch 2.11
// keeps the workspace. Later versions free it when a recording ends, while the graphs that were recorded before would
// still write to it. So another version needs a look at that first.
TEST(DeviceTest, GraphsAreForThisVersionOfLibtorch) {
  EXPECT_EQ(TORCH_VERSION_MAJOR, 2);
  EXPECT_EQ(TORCH_VERSION_MINOR, 11);
}

}  // namespace
}  // namespace berth
