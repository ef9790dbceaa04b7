// A scheduler with tiers below the arena, stepped by hand.
#ifndef BERTH_TESTS_SCHEDULER_TIERS_TIER_HARNESS_H_
#define BERTH_TESTS_SCHEDULER_TIERS_TIER_HARNESS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {

inline absl::Time clock_time = absl::UnixEpoch();
inline absl::Duration per_look;  // what the copies' clock moves by when it is read
inline absl::Time CopyClock() { return clock_time += per_look; }

inline Scheduler::Options Tiered(FakePrefixDisk* disk = nullptr, int64_t host_bytes = 1 << 20,
                                 int64_t step_bytes = 1 << 20) {
  per_look = absl::ZeroDuration();
  return {.max_running = 4,
          .max_step_tokens = 32,
          .prefill_chunk_tokens = 16,
          .max_sequence_tokens = 1000,
          .share_prefixes = true,
          .swap = {.host_tier_bytes = host_bytes, .copy_bytes_per_step = step_bytes, .copy_clock = CopyClock},
          .prefixes = {.disk = disk, .disk_limit_bytes = 1 << 20, .idle = absl::Seconds(10)}};
}

struct TierHarness : SchedulerHarness {
  using SchedulerHarness::SchedulerHarness;

  const PrefixTier::Counts& tier() const { return scheduler->prefix_tier().counts(); }
  RequestKey Run(Request request) {
    const RequestKey key = Add(std::move(request));
    RunToEnd();
    return key;
  }
  // A request that continues what `key` left, by `more` tokens.
  Request Next(RequestKey key, int64_t more = 3) {
    Request request = MakeRequest(1, 4);
    request.prompt = requests[key].prompt;
    request.prompt.insert(request.prompt.end(), records[key].tokens.begin(), records[key].tokens.end());
    for (int64_t i = 0; i < more; ++i) request.prompt.push_back(static_cast<int32_t>(50 + i));
    request.cache_salt = requests[key].cache_salt;
    return request;
  }
  // No request came for a while.
  void Idle() {
    clock.Advance(absl::Seconds(11));
    for (int i = 0; i < 10; ++i) scheduler->RunIdleWork(clock.Now());
  }
  void ExpectIdleThenNothingOwed() {
    ExpectAllEnded();
    EXPECT_EQ(scheduler->host_tier().sequence_bytes, 0);
  }
};

// Models with caches of each kind.
inline const std::vector<std::vector<LayerCacheSpec>>& Models() {
  static const auto* const models = new std::vector<std::vector<LayerCacheSpec>>{
      {StaticLayer()}, {RecurrentLayer()}, {SlidingLayer(6), StaticLayer()}, {ChunkedLayer(8)}, HybridLayers()};
  return *models;
}

// Whether the callback of CallWhenGone has been called, with OK.
inline bool IsGone(TierHarness* h, FakePrefixDisk* disk) {
  bool gone = false;
  h->scheduler->CallWhenGone([&](const absl::Status& status) { gone = status.ok(); });
  EXPECT_EQ(gone, disk == nullptr || !disk->stalled);
  if (disk != nullptr) disk->Work();
  return gone;
}

}  // namespace berth

#endif  // BERTH_TESTS_SCHEDULER_TIERS_TIER_HARNESS_H_
