// Steps that only decode allocate nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/scheduler/scheduler_harness.h"

namespace {

int64_t num_allocations = 0;  // of this thread, the only one

}  // namespace

void* operator new(size_t size) {
  ++num_allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace berth {
namespace {

TEST(SchedulerAllocation, DecodeStepsAllocateNothing) {
  constexpr int64_t kRows = 64;
  TinyCache tiny(HybridLayers(), /*size=*/4, /*piece_bytes=*/1 << 20);
  auto made = Scheduler::Create(
      tiny.cache.get(),
      {.max_running = kRows, .max_step_tokens = kRows, .prefill_chunk_tokens = 1, .max_sequence_tokens = 1000});
  ASSERT_TRUE(made.ok()) << made.status();
  Scheduler& scheduler = **made;
  for (RequestKey key = 1; key <= kRows; ++key) {
    Request request;
    request.key = key;
    request.prompt = {1};
    request.max_tokens = 400;
    scheduler.Add(std::move(request));
  }
  std::vector<TokenEvent> events;
  StepResult result;
  result.rows.resize(kRows);
  for (RowResult& row : result.rows) row.token = 7;
  // From 132 to 252 tokens a block table has more than 32 and at most 63 entries: it does not grow its storage.
  for (int step = 1; step <= 252; ++step) {
    if (step == 133) num_allocations = 0;
    scheduler.EndDue(absl::UnixEpoch(), &events);
    ASSERT_EQ(scheduler.Plan(absl::UnixEpoch()).rows.size(), static_cast<size_t>(kRows));
    scheduler.Commit(result, absl::UnixEpoch(), &events);
    events.clear();
  }
  EXPECT_EQ(num_allocations, 0);
}

}  // namespace
}  // namespace berth
