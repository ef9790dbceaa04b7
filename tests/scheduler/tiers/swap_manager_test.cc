// The SwapManager alone: sequences whose cache the test writes and reads, without a scheduler or a model.
#include "scheduler/tiers/swap_manager.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "scheduler/sequence.h"
#include "scheduler/tiers/prefix_sharing.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

using SwapInResult = SwapManager::SwapInResult;

constexpr int64_t kKvBytes = 2 * kTinyBlockTokens * 4;  // keys and values of a block of StaticLayer
constexpr int64_t kBlockBytes = 128;                    // a block with its padding

bool Fits(const SequenceLease&) { return true; }
bool FitsNot(const SequenceLease&) { return false; }

struct SwapManagerTest : public ::testing::Test {
  // Creates the manager. Copies cost nothing.
  void Create(SwapOptions swap_options) {
    swap_options.copy_clock = absl::UnixEpoch;
    const SchedulerOptions options = {.prefill_chunk_tokens = 8,
                                      .share_prefixes = true,
                                      .swap = swap_options,
                                      .prefixes = {.idle = absl::Seconds(5)}};
    sharing = std::make_unique<PrefixSharing>(options, &tiny.cache->plan());
    swap = std::make_unique<SwapManager>(options, tiny.cache.get(), sharing.get());
  }
  ~SwapManagerTest() override {
    sequence.reset();
    swap.reset();
    tiny.cache->EvictAll();
    Occupancy occupancy;
    tiny.cache->GetOccupancy(/*step_tokens=*/8, /*limit=*/1000, &occupancy);
    EXPECT_EQ(occupancy.num_leases, 0);
    EXPECT_TRUE(tiny.cache->CheckIntegrity().ok());
  }

  // A sequence whose first `num_tokens` tokens are in the cache, as bytes of `value`.
  static std::unique_ptr<Sequence> Waiting(int64_t num_tokens) {
    Request request;
    request.key = 1;
    request.prompt.assign(static_cast<size_t>(num_tokens) + 1, 7);
    request.max_tokens = 10;
    return std::make_unique<Sequence>(std::move(request));
  }
  void Run(Sequence* running, int64_t num_tokens, int value) {
    TakeLease(running);
    ASSERT_TRUE(running->lease.Grow(num_tokens).ok());
    for (int64_t offset : running->lease.blocks(0).offsets) {
      std::memset(tiny.storage->base() + offset, value, kKvBytes);
    }
    running->encoded = true;
  }
  void TakeLease(Sequence* waiting) {
    waiting->lease = tiny.cache->NewLease();
    sharing->Adopt(waiting);
  }
  // A sequence of 20 tokens that is on its way out.
  void StartSwapOut() {
    sequence = Waiting(20);
    Run(sequence.get(), 20, 42);
    ASSERT_TRUE(swap->SwapOut(sequence.get()));
    sequence->encoded = false;
  }
  void ExpectCache(const SequenceLease& lease, int64_t num_tokens, int value) {
    ASSERT_EQ(lease.num_tokens(), num_tokens);
    const std::vector<char> bytes(kKvBytes, static_cast<char>(value));
    // The last block may be in part.
    for (size_t b = 0; b < static_cast<size_t>(num_tokens / kTinyBlockTokens); ++b) {
      EXPECT_EQ(std::memcmp(tiny.storage->base() + lease.blocks(0).offsets[b], bytes.data(), kKvBytes), 0) << b;
    }
  }
  // A step beside which copies run. Returns the sequence that was swapped out.
  const Sequence* Step() {
    swap->BeginStep(now, /*next=*/nullptr, /*nothing_runs=*/false);
    return FinishStep();
  }
  const Sequence* FinishStep() {
    swap->StartCopies(now, /*next=*/nullptr);
    return swap->FinishCopies(now);
  }

  absl::Time now = absl::UnixEpoch();
  TinyCache tiny{{StaticLayer()}, 16};
  std::unique_ptr<PrefixSharing> sharing;
  std::unique_ptr<SwapManager> swap;
  std::unique_ptr<Sequence> sequence;
};

TEST_F(SwapManagerTest, BringsTheSameBytesBackAFewEachStep) {
  Create({.host_tier_bytes = 10000, .copy_bytes_per_step = 50});
  StartSwapOut();
  const int64_t size = swap->host_tier().sequence_bytes;
  EXPECT_EQ(size, 5 * kBlockBytes);
  int64_t num_steps = 0;
  while (swap->swapping_out() != nullptr) {
    EXPECT_EQ(swap->swapping_out(), sequence.get());
    EXPECT_TRUE(sequence->swapped.empty());
    const Sequence* const done = Step();
    ++num_steps;
    EXPECT_EQ(done, swap->swapping_out() == nullptr ? sequence.get() : nullptr);
  }
  EXPECT_EQ(num_steps, (size + 49) / 50);
  EXPECT_EQ(sequence->swapped.snapshot().num_tokens, 20);

  num_steps = 0;
  SwapInResult result = SwapInResult::kWaits;
  for (; num_steps < 100; ++num_steps) {
    swap->BeginStep(now, sequence.get(), /*nothing_runs=*/false);
    TakeLease(sequence.get());
    result = swap->SwapIn(sequence.get(), now, /*nothing_runs=*/false, Fits);
    if (result != SwapInResult::kWaits) break;
    EXPECT_EQ(FinishStep(), nullptr);
  }
  EXPECT_EQ(result, SwapInResult::kTaken);
  EXPECT_EQ(num_steps, (size + 49) / 50);
  EXPECT_TRUE(sequence->encoded);
  ExpectCache(sequence->lease, 20, 42);
  sequence->swapped.Drop();
  EXPECT_EQ(swap->host_tier().sequence_bytes, 0);
}

TEST_F(SwapManagerTest, CopiesAtOnceWhereNothingRuns) {
  Create({.host_tier_bytes = 10000, .copy_bytes_per_step = 1});
  StartSwapOut();
  EXPECT_EQ(swap->FinishSwapOut(), sequence.get());
  EXPECT_EQ(swap->swapping_out(), nullptr);
  TakeLease(sequence.get());
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/true, Fits), SwapInResult::kTaken);
  ExpectCache(sequence->lease, 20, 42);
}

TEST_F(SwapManagerTest, SwapsNothingOutWithoutRoomOrTokens) {
  sequence = Waiting(20);
  for (int64_t host_tier_bytes : {int64_t{0}, 5 * kBlockBytes - 1}) {
    Create({.host_tier_bytes = host_tier_bytes});
    Run(sequence.get(), 20, 1);
    EXPECT_FALSE(swap->SwapOut(sequence.get()));
    EXPECT_EQ(sequence->lease.num_tokens(), 20) << "the lease was taken";
    EXPECT_EQ(swap->host_tier().sequence_bytes, 0);
  }
  Create({.host_tier_bytes = 10000});
  TakeLease(sequence.get());
  EXPECT_FALSE(swap->SwapOut(sequence.get()));
}

TEST_F(SwapManagerTest, ACancelledSwapOutReturnsTheLease) {
  Create({.host_tier_bytes = 10000, .copy_bytes_per_step = 50});
  StartSwapOut();
  Step();
  EXPECT_FALSE(swap->CancelSwapOut(FitsNot));
  EXPECT_EQ(swap->swapping_out(), sequence.get());
  EXPECT_TRUE(swap->CancelSwapOut(Fits));
  EXPECT_EQ(swap->swapping_out(), nullptr);
  EXPECT_EQ(swap->host_tier().sequence_bytes, 0);
  ExpectCache(sequence->lease, 20, 42);
}

TEST_F(SwapManagerTest, ACancelledSwapInReturnsItsRoomAndStartsAgain) {
  Create({.host_tier_bytes = 10000, .copy_bytes_per_step = 50});
  StartSwapOut();
  swap->FinishSwapOut();
  tiny.cache->EvictAll();
  const int64_t available = tiny.cache->available_bytes();
  swap->BeginStep(now, sequence.get(), /*nothing_runs=*/false);
  EXPECT_FALSE(swap->CancelSwapIn());
  TakeLease(sequence.get());
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/false, Fits), SwapInResult::kWaits);
  FinishStep();
  EXPECT_LT(tiny.cache->available_bytes(), available);
  EXPECT_TRUE(swap->CancelSwapIn());
  EXPECT_EQ(tiny.cache->available_bytes(), available);
  // Now it no longer fits.
  TakeLease(sequence.get());
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/false, Fits), SwapInResult::kWaits);
  TakeLease(sequence.get());
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/false, FitsNot), SwapInResult::kWaits);
  EXPECT_EQ(tiny.cache->available_bytes(), available);
  TakeLease(sequence.get());
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/true, Fits), SwapInResult::kTaken);
  ExpectCache(sequence->lease, 20, 42);
}

TEST_F(SwapManagerTest, AnEndDropsWhatIsOnItsWay) {
  Create({.host_tier_bytes = 10000, .copy_bytes_per_step = 50});
  StartSwapOut();
  Step();
  swap->OnEnd(*sequence, /*complete=*/false, now);
  EXPECT_EQ(swap->swapping_out(), nullptr);
  EXPECT_EQ(swap->host_tier().sequence_bytes, 0);

  StartSwapOut();
  swap->FinishSwapOut();
  TakeLease(sequence.get());
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/false, Fits), SwapInResult::kWaits);
  swap->OnEnd(*sequence, /*complete=*/false, now);
  EXPECT_FALSE(swap->CancelSwapIn());
}

TEST_F(SwapManagerTest, AResumedCacheIsKeptUnlessTheTierIsTooSmall) {
  const auto snapshot_of_20 = [&] {
    SequenceLease lease = tiny.cache->NewLease();
    EXPECT_TRUE(lease.Grow(20).ok());
    return lease.Save();
  };
  for (const auto& [host_tier_bytes, kept] :
       {std::pair<int64_t, bool>{0, true}, {5 * kBlockBytes, true}, {5 * kBlockBytes - 1, false}}) {
    Create({.host_tier_bytes = host_tier_bytes});
    sequence = Waiting(20);
    swap->KeepResumed(snapshot_of_20(), sequence.get());
    EXPECT_EQ(!sequence->swapped.empty(), kept) << host_tier_bytes;
    EXPECT_EQ(swap->host_tier().sequence_bytes, kept ? 5 * kBlockBytes : 0);
    sequence.reset();
    EXPECT_EQ(swap->host_tier().sequence_bytes, 0);
  }
}

TEST_F(SwapManagerTest, WithoutATierResumedCachesAreKeptUpToTheArenasSize) {
  Create({.host_tier_bytes = 0});
  const int64_t arena_bytes = tiny.storage->size_bytes();
  std::vector<std::unique_ptr<Sequence>> resumed;
  for (int64_t kept_bytes = 0; kept_bytes + 5 * kBlockBytes <= arena_bytes; kept_bytes += 5 * kBlockBytes) {
    SequenceLease lease = tiny.cache->NewLease();
    ASSERT_TRUE(lease.Grow(20).ok());
    resumed.push_back(Waiting(20));
    swap->KeepResumed(lease.Save(), resumed.back().get());
    EXPECT_FALSE(resumed.back()->swapped.empty()) << kept_bytes;
  }
  sequence = Waiting(20);
  SequenceLease lease = tiny.cache->NewLease();
  ASSERT_TRUE(lease.Grow(20).ok());
  swap->KeepResumed(lease.Save(), sequence.get());
  EXPECT_TRUE(sequence->swapped.empty()) << "it is computed again";
}

TEST_F(SwapManagerTest, AnEndedSequencesPrefixIsOffloadedWhenIdleAndSwappedInForTheNext) {
  Create({.host_tier_bytes = 10000});
  std::unique_ptr<Sequence> first = Waiting(20);
  Run(first.get(), 20, 9);
  sharing->Publish(first.get(), /*at_end=*/true);
  swap->OnEnd(*first, /*complete=*/true, now);
  first.reset();
  EXPECT_EQ(swap->NextIdleWork(now), now + absl::Seconds(5));
  swap->RunIdleWork(now);
  EXPECT_EQ(swap->host_tier().prefix_bytes, 0) << "it was offloaded before it was idle";
  now += absl::Seconds(5);
  swap->RunIdleWork(now);
  EXPECT_EQ(swap->host_tier().prefix_bytes, 5 * kBlockBytes);
  EXPECT_EQ(swap->NextIdleWork(now), absl::InfiniteFuture());
  tiny.cache->EvictAll();

  sequence = Waiting(20);
  TakeLease(sequence.get());
  EXPECT_EQ(sequence->hit.num_tokens, 0);
  EXPECT_EQ(swap->SwapIn(sequence.get(), now, /*nothing_runs=*/true, Fits), SwapInResult::kTaken);
  EXPECT_EQ(sequence->hit.num_tokens, 20);
  ExpectCache(sequence->lease, 20, 9);
  EXPECT_EQ(swap->prefix_tier().counts().restored_tokens, 20);
  EXPECT_FALSE(swap->awaits_disk());
}

}  // namespace
}  // namespace berth
