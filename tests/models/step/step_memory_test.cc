#include "models/step/step_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

namespace berth {
namespace {

constexpr int64_t kFloats = 100000;

TEST(StepMemory, RepeatedStepsTakeNothingFromTheSystem) {
  StepMemory memory;
  const auto step = [&](int64_t tokens) {
    const ScopedStepMemory use(&memory);
    at::Tensor x = at::ones({tokens, 64});
    for (int layer = 0; layer < 4; ++layer) x = x.matmul(at::ones({64, 64})).add(1);
    return x.sum().item<float>();
  };
  const float sum = step(300);
  const int64_t after_first = memory.num_allocations();
  EXPECT_GT(after_first, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(300), sum);
  EXPECT_EQ(memory.num_allocations(), after_first);
  step(200);  // what is smaller by less than a fourth finds room in what larger steps left
  EXPECT_EQ(memory.num_allocations(), after_first);
  step(1200);
  EXPECT_GT(memory.num_allocations(), after_first);
}

TEST(StepMemory, KeepsWhatIsReturned) {
  StepMemory memory;
  const ScopedStepMemory use(&memory);
  at::Tensor x = at::empty({kFloats});
  const void* const place = x.const_data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0u);
  EXPECT_EQ(memory.kept_bytes(), 0);
  x.reset();
  EXPECT_GE(memory.kept_bytes(), kFloats * 4);
  EXPECT_LE(memory.kept_bytes(), kFloats * 5);
  x = at::empty({kFloats - 1});
  EXPECT_EQ(x.const_data_ptr(), place);
  EXPECT_EQ(memory.kept_bytes(), 0);
}

// As ATen's products in bfloat16 do.
TEST(StepMemory, GivesMemoryWithoutATensorToo) {
  StepMemory memory;
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const outside = allocator->raw_allocate(100);
  void* inside = nullptr;
  {
    const ScopedStepMemory use(&memory);
    inside = allocator->raw_allocate(100);
    EXPECT_EQ(memory.num_allocations(), 1);
    allocator->raw_deallocate(outside);
    allocator->raw_deallocate(allocator->raw_allocate(0));
    EXPECT_EQ(memory.kept_bytes(), 0);
    const at::Tensor x = at::ones({5, 64}, at::kBFloat16);
    EXPECT_EQ(x.matmul(x.t()).sum().item<float>(), 5 * 5 * 64);
  }
  allocator->raw_deallocate(inside);
}

TEST(StepMemory, EverySizeHasItsRoom) {
  StepMemory memory;
  const ScopedStepMemory use(&memory);
  for (int64_t size = 1; size < 100000; size += 1 + size / 7) {
    at::Tensor bytes = at::empty({size}, at::kByte);
    bytes.fill_(1);  // for the address sanitizer, and valgrind
    EXPECT_EQ(bytes.sum().item<int64_t>(), size);
  }
}

TEST(StepMemory, TensorsOutliveIt) {
  at::Tensor kept, returned_elsewhere;
  {
    StepMemory memory;
    const ScopedStepMemory use(&memory);
    kept = at::ones({kFloats});
    returned_elsewhere = at::ones({kFloats});
    std::thread([&] { returned_elsewhere.reset(); }).join();
    EXPECT_EQ(memory.kept_bytes(), 0);
  }
  EXPECT_EQ(kept.sum().item<float>(), kFloats);
  const at::Tensor of_nobody = at::ones({kFloats});
  EXPECT_EQ(of_nobody.sum().item<float>(), kFloats);
}

}  // namespace
}  // namespace berth
