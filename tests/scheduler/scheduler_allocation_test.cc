// Steps that only decode allocate nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <tuple>

#include "scheduler/policy/fair_policy.h"
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

// Allows the even tokens of 128,000, for ever.
class EvenTokens : public TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> Clone() const override { return std::make_unique<EvenTokens>(); }
  absl::Status FillMasks(absl::Span<const int32_t> /*drafts*/, absl::Span<uint32_t> masks) override {
    std::fill(masks.begin(), masks.end(), 0x55555555);
    return absl::OkStatus();
  }
  absl::Status Accept(int32_t /*token*/) override { return absl::OkStatus(); }
  int64_t CountAllowed(absl::Span<const int32_t> tokens) override { return static_cast<int64_t>(tokens.size()); }
  absl::Status AppendForced(int64_t /*limit*/, std::vector<int32_t>* /*tokens*/) override { return absl::OkStatus(); }
  bool IsComplete() override { return false; }
};

class SchedulerAllocation : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(SchedulerAllocation, DecodeStepsAllocateNothing) {
  const auto [constrained, fair] = GetParam();
  FairPolicy policy({});
  constexpr int64_t kRows = 64;
  TinyCache tiny(HybridLayers(), /*size=*/4, /*piece_bytes=*/1 << 20);
  auto made = Scheduler::Create(tiny.cache.get(), {.max_running = kRows,
                                                   .max_step_tokens = kRows,
                                                   .prefill_chunk_tokens = 1,
                                                   .max_sequence_tokens = 1000,
                                                   .vocab_size = 128000,
                                                   .policy = fair ? &policy : nullptr});
  ASSERT_TRUE(made.ok()) << made.status();
  Scheduler& scheduler = **made;
  for (RequestKey key = 1; key <= 2 * kRows; ++key) {  // half of them wait
    Request request;
    request.key = key;
    request.prompt = {1};
    request.max_tokens = 400;
    request.cache_salt = key % 2 == 0 ? "one" : "another";
    if (constrained) request.constraint = std::make_shared<EvenTokens>();
    scheduler.Add(std::move(request));
  }
  std::vector<TokenEvent> events;
  StepResult result;
  result.rows.resize(kRows);
  for (RowResult& row : result.rows) row.token = 8;
  // From 132 to 252 tokens a block table has more than 32 and at most 63 entries: it does not grow its storage.
  for (int step = 1; step <= 252; ++step) {
    if (step == 133) num_allocations = 0;
    scheduler.EndDue(absl::UnixEpoch(), &events);
    const StepPlan& plan = scheduler.Plan(absl::UnixEpoch());
    ASSERT_EQ(plan.rows.size(), static_cast<size_t>(kRows));
    ASSERT_EQ(plan.rows.back().masks != nullptr, constrained);
    scheduler.Commit(result, absl::UnixEpoch(), &events);
    events.clear();
  }
  EXPECT_EQ(num_allocations, 0);
}

INSTANTIATE_TEST_SUITE_P(ConstrainedOrFair, SchedulerAllocation, testing::Combine(testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace berth
