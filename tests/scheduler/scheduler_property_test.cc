// Random schedules in arenas far too small. Whatever arrives, is cancelled, is paused, expires or fails: every request
// ends once, with the tokens that it gets alone, and every byte comes back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "absl/strings/str_cat.h"
#include "scheduler/policy/fair_policy.h"
#include "scheduler/policy/policy.h"
#include "tests/scheduler/scheduler_harness.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {
namespace {

// Chooses anything that a policy may choose.
class RandomPolicy : public SchedulingPolicy {
 public:
  explicit RandomPolicy(uint32_t seed) : random_(seed) {}

  const Sequence* PickToAdmit(const WaitingSequences& waiting) override {
    return waiting[random_() % waiting.size()].get();
  }
  size_t PickToPreempt(RunningSequences candidates, const Sequence& /*beneficiary*/) override {
    switch (random_() % 6) {
      case 0:
        return kNobody;
      case 1:
        return kItself;
      default:
        return random_() % candidates.size();
    }
  }
  int64_t TokenLimit(const Sequence& /*sequence*/, TokenUse /*use*/, int64_t left) override {
    return random_() % 2 == 0 ? left : static_cast<int64_t>(random_()) % (left + 5) - 2;
  }

 private:
  std::mt19937 random_;
};

struct RandomSchedule {
  explicit RandomSchedule(uint32_t seed, bool with_tiers = false, bool checkpoints = false)
      : random(seed), with_tiers(with_tiers), checkpoints(checkpoints) {}

  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int64_t n) { return Between(1, n) == 1; }

  std::vector<LayerCacheSpec> Layers() {
    switch (Between(0, with_tiers ? 5 : 8)) {
      case 0:
        return {StaticLayer()};
      case 1:
        return {RecurrentLayer(), RecurrentLayer()};
      case 2:
        return {SlidingLayer(Between(1, 12)), StaticLayer(), SlidingLayer(Between(13, 20))};
      case 3:
        return {SlidingLayer(Between(1, 12)), RecurrentLayer(), SlidingLayer(Between(1, 12), Between(1, 9))};
      case 4:
        return {SlidingLayer(Between(20, 60), Between(1, 30)), StaticLayer()};
      case 5:
        return {PromptAwareLayer(), StaticLayer()};
      case 6:
        return {CrossLayer(), CrossLayer()};
      case 7:
        return {CrossLayer(), RecurrentLayer(), SlidingLayer(Between(1, 12))};
      default:
        return HybridLayers();
    }
  }
  Scheduler::Options Options() {
    Scheduler::Options options;
    options.max_running = Between(1, 8);
    options.max_step_tokens = options.max_running + Between(1, 20);
    options.prefill_chunk_tokens = Between(1, 12);
    options.max_sequence_tokens = OneIn(2) ? Between(2, 80) : 1000;
    options.share_prefixes = !OneIn(3);
    options.max_shareable_tokens = OneIn(4) ? Between(1, 60) : 0;
    options.state_checkpoint_tokens = OneIn(3) ? 0 : OneIn(2) ? Scheduler::Options::kAutoCheckpoints : Between(1, 20);
    options.aligned_prefill_chunks = OneIn(4);
    if (!OneIn(3)) options.swap = {.host_tier_bytes = Between(64, 5000), .copy_bytes_per_step = Between(64, 4000)};
    options.swap.copy_clock = absl::UnixEpoch;  // stands still
    options.swap.beside_steps = OneIn(3);       // how far a copy comes in a step is up to the threads
    options.prefixes.idle = absl::Seconds(Between(0, 40));
    if (OneIn(2)) {
      options.prefixes.disk = &disk;
      options.prefixes.disk_limit_bytes = Between(64, 200000);
    }
    if (with_tiers) {
      options.max_sequence_tokens = Between(40, 120);
      options.share_prefixes = true;
      options.max_shareable_tokens = 0;
      options.swap.host_tier_bytes = Between(1000, 20000);
      options.swap.copy_bytes_per_step = Between(64, 4000);
      options.prefixes = {
          .disk = &disk, .disk_limit_bytes = Between(1000, 200000), .idle = absl::Seconds(Between(0, 9))};
    }
    options.mask_threads = OneIn(4) ? Between(1, 2) : 0;
    options.save_sink = &sink;
    options.policy = policy.get();
    options.compact_bytes_per_step = OneIn(2) ? 0 : 1 << 10;
    // Short ones only: what a crop loses of a state is computed again from the start.
    if (options.max_sequence_tokens < 100 && OneIn(2)) options.crop_every = Between(1, 12);
    return options;
  }
  Request MakeRequest(SchedulerHarness* h) {
    const int64_t longest = h->scheduler->max_sequence_tokens();
    const int64_t prompt = OneIn(4) ? Between(1, longest - 1) : Between(1, (longest + 1) / 2);
    Request request = h->MakeRequest(prompt, Between(1, longest - prompt));
    // Many begin as an earlier one did, or continue its output.
    if (h->last_key > 1 && !OneIn(3)) {
      const auto other = h->requests.find(Between(1, h->last_key - 1));
      std::vector<int32_t> known = other->second.prompt;
      const std::vector<int32_t>& output = h->records[other->first].tokens;
      known.insert(known.end(), output.begin(), output.end());
      const int64_t shared = Between(0, std::min<int64_t>(prompt, known.size()));
      std::copy_n(known.begin(), shared, request.prompt.begin());
      request.cache_salt = OneIn(5) ? "other" : other->second.cache_salt;
    }
    if (num_tenants > 0) {
      if (OneIn(3)) request.cache_salt = absl::StrCat(Between(1, num_tenants));
      request.priority = OneIn(2) ? 0 : Between(-100, 100);
    }
    for (int64_t end = Between(0, 8); end < prompt; end += Between(1, 20)) {
      if (end > 0) request.message_ends.push_back(static_cast<int32_t>(end));
    }
    if (OneIn(5)) request.prompt_logprobs = static_cast<int32_t>(Between(0, 3));
    request.share_prefix = !OneIn(8);
    if (OneIn(2)) {
      request.sampling.temperature = 0;
      request.draft_tokens = Between(0, kMaxDraftTokens);
    }
    for (int64_t i = Between(0, 3); i > 0; --i) {
      request.stop_token_ids.push_back(static_cast<int32_t>(Between(0, 99)));
    }
    if (const int64_t most = h->scheduler->max_encoder_tokens(); most > 0) {
      request.encoder_tokens.resize(OneIn(3) ? most : Between(1, most));
      for (int32_t& token : request.encoder_tokens) token = static_cast<int32_t>(Between(0, 99));
    }
    if (OneIn(4)) request.forced_first = {static_cast<int32_t>(Between(0, 99))};
    if (OneIn(4)) request.forced_last = {static_cast<int32_t>(Between(0, 49)), static_cast<int32_t>(Between(50, 99))};
    if (OneIn(3)) request.min_tokens = Between(0, request.max_tokens);
    if (OneIn(3)) Constrain(&request);
    if (OneIn(3)) AddOutputs(h, &request);
    request.saved = request.num_sequences() == 1 && OneIn(3);
    request.autosave_tokens = Between(0, 6);
    if (OneIn(5)) request.deadline = h->clock.Now() + absl::Seconds(Between(0, 60));
    if (OneIn(6) && request.encoder_tokens.empty()) MakeEmbedding(h, &request);
    return request;
  }

  // Makes it a prompt without an output.
  void MakeEmbedding(SchedulerHarness* h, Request* request) {
    Request embedding = h->MakeRequest(1, /*max_tokens=*/0);
    h->last_key = embedding.key = request->key;
    embedding.pooling = OneIn(2) ? Pooling::kLast : Pooling::kMean;
    embedding.prompt = request->prompt;
    embedding.message_ends = request->message_ends;
    embedding.share_prefix = request->share_prefix;
    embedding.cache_salt = request->cache_salt;
    embedding.priority = request->priority;
    embedding.deadline = request->deadline;
    *request = std::move(embedding);
    ++num_embeddings;
  }

  void Constrain(Request* request) {
    FakeConstraint::Options constraint = {.seed = random(), .forced = Between(0, 90), .complete = Between(0, 9)};
    if (!request->stop_token_ids.empty()) constraint.end_tokens = {request->stop_token_ids[0]};
    if (OneIn(4)) constraint.dead = Between(1, 9);
    if (OneIn(8)) constraint.fails_at = Between(0, 30);
    request->constraint = std::make_shared<FakeConstraint>(constraint);
    request->sampling.logprobs_after_mask = OneIn(2);
    ++num_constrained;
  }

  // Some saved requests resume as other requests, and must come to the same end.
  void Resume(SchedulerHarness* h) {
    for (SavedRequest& saved : sink.taken) {
      if (!saved.progress.has_value() || saved.progress->finish != FinishReason::kNone || !OneIn(4)) continue;
      Request request = h->requests[saved.key];
      request.key = ++h->last_key;
      request.deadline = absl::InfiniteFuture();
      request.progress = std::make_shared<Progress>(*std::move(saved.progress));
      if (OneIn(5)) request.progress->snapshot = {};
      if (!request.progress->snapshot.empty()) ++num_resumed;
      h->Add(std::move(request));
    }
    sink.taken.clear();
  }

  void AddOutputs(SchedulerHarness* h, Request* request) {
    Request several = *request;
    several.num_outputs = Between(1, 5);
    if (OneIn(2)) {
      several.prompt_logprobs = -1;
      several.beams = {.num_beams = several.num_outputs + Between(several.num_outputs == 1 ? 1 : 0, 2),
                       .length_penalty = static_cast<double>(Between(-1, 3)) / 2,
                       .early_stopping = static_cast<EarlyStopping>(Between(0, 2))};
      // Enough end tokens that beams end.
      for (int i = 0; i < 4; ++i) several.stop_token_ids.push_back(static_cast<int32_t>(Between(0, 99)));
    }
    if (!ValidateRequest(several, 100, h->scheduler->max_sequence_tokens(), h->scheduler->max_encoder_tokens()).ok() ||
        !h->scheduler->CheckRequest(several).ok()) {
      return;
    }
    *request = std::move(several);
    ++num_forked;
  }

  // Clients that do not read for a while, or for too long.
  void PauseSome(SchedulerHarness* h) {
    if (h->last_key == 0) return;
    const auto newest = [&] {
      return static_cast<RequestKey>(Between(std::max<int64_t>(1, h->last_key - 15), h->last_key + 1));
    };
    if (OneIn(8)) h->scheduler->Pause(newest(), h->clock.Now(), absl::Seconds(Between(0, 100)));
    if (OneIn(3)) h->scheduler->Unpause(newest());
  }

  void Run(int num_steps) {
    // States that a test can quantise are larger, and so are their arenas.
    const std::vector<LayerCacheSpec> layers = checkpoints ? WithWideStates(Layers()) : Layers();
    SchedulerHarness h(layers, Between(8, 24), Options(), /*piece_bytes=*/256 * Between(checkpoints ? 2 : 1, 4),
                       checkpoints, /*state_share=*/OneIn(2) ? 1.0 : 0.05 * static_cast<double>(Between(0, 10)));
    h.runner.on_run = [this](const StepPlan&) {
      return may_fail && OneIn(50) ? absl::InternalError("random") : absl::OkStatus();
    };
    may_fail = OneIn(2);
    disk.on_write = [this] { return OneIn(20) ? absl::ResourceExhaustedError("random") : absl::OkStatus(); };
    disk.on_read = [this] { return OneIn(20) ? absl::DataLossError("random") : absl::OkStatus(); };
    const int64_t arrivals = Between(1, 6);  // one arrives in this many steps
    while (h.num_steps < num_steps && !testing::Test::HasFailure()) {
      while (OneIn(arrivals) && h.scheduler->counts().num_waiting < 20) h.Add(MakeRequest(&h));
      if (h.last_key > 0 && OneIn(20)) {
        h.scheduler->Cancel(static_cast<RequestKey>(Between(1, h.last_key + 1)), FinishReason::kCancelled);
      }
      if (h.last_key > 0 && OneIn(10)) {
        const auto some = h.requests.find(Between(1, h.last_key));
        if (some->second.beams.num_beams == 0) {
          h.scheduler->Cancel(some->first, FinishReason::kCancelled, static_cast<int32_t>(Between(0, 4)));
        }
      }
      PauseSome(&h);
      h.clock.Advance(absl::Seconds(1));
      if (h.scheduler->empty() && OneIn(2)) h.scheduler->RunIdleWork(h.clock.Now());
      if (h.scheduler->empty()) h.Add(MakeRequest(&h));
      disk.stalled = OneIn(2);
      sink.is_ready = !OneIn(4);
      h.Step();
      Resume(&h);
    }
    may_fail = false;
    disk.stalled = false;
    for (RequestKey key = 1; key <= h.last_key; ++key) h.scheduler->Unpause(key);
    h.RunToEnd();
    num_pauses += h.scheduler->counts().num_pauses;
    h.ExpectAllEnded();
    ExpectTiersAddUp(&h);
    num_forced_tokens += h.scheduler->counts().forced_tokens;
    num_preemptions += h.scheduler->counts().num_preemptions;
    num_swap_outs += h.scheduler->counts().num_swap_outs;
    num_hit_tokens += h.scheduler->counts().prefix_hit_tokens;
    num_wrong_drafts += h.scheduler->counts().draft_tokens - h.scheduler->counts().accepted_draft_tokens;
    num_right_drafts += h.scheduler->counts().accepted_draft_tokens;
  }

  void ExpectTiersAddUp(SchedulerHarness* h) {
    disk.on_write = [] { return absl::OkStatus(); };
    h->scheduler->SaveAll(h->clock.Now());
    h->scheduler->RunIdleWork(h->clock.Now());
    const HostTier& host = h->scheduler->host_tier();
    EXPECT_EQ(host.sequence_bytes, 0);
    EXPECT_GE(host.prefix_bytes, 0);
    EXPECT_LE(host.prefix_bytes, host.limit_bytes);
    const PrefixTier::Counts& counts = h->scheduler->prefix_tier().counts();
    disk.Work();
    EXPECT_EQ(counts.disk_bytes, disk.TotalBytes());
    EXPECT_LE(counts.disk_bytes, h->scheduler->prefix_tier().disk_limit_bytes());
    num_restored_tokens += counts.restored_tokens;
    num_disk_reads += counts.num_disk_reads;
    num_failed += counts.full_disk + counts.torn_files;
  }

  RecordingSaveSink sink;
  FakePrefixDisk disk;
  std::unique_ptr<SchedulingPolicy> policy;  // null: first come, first served
  int64_t num_tenants = 0;                   // that requests name at random, with a priority; 0: neither
  int64_t num_restored_tokens = 0;
  int64_t num_disk_reads = 0;
  int64_t num_failed = 0;
  int64_t num_resumed = 0;
  std::mt19937 random;
  const bool with_tiers;
  const bool checkpoints;  // quantised
  bool may_fail = false;
  int64_t num_preemptions = 0;
  int64_t num_swap_outs = 0;
  int64_t num_hit_tokens = 0;
  int64_t num_wrong_drafts = 0;
  int64_t num_right_drafts = 0;
  int64_t num_forked = 0;
  int64_t num_constrained = 0;
  int64_t num_embeddings = 0;
  int64_t num_forced_tokens = 0;
  int64_t num_pauses = 0;
};

// BERTH_SEED: the seed to begin with, to see again what it showed.
uint32_t FirstSeed() {
  const char* seed = std::getenv("BERTH_SEED");
  return seed != nullptr ? static_cast<uint32_t>(std::atoi(seed)) : 1;
}

TEST(SchedulerProperty, EveryRequestEndsOnceWithItsTokens) {
  const bool full = std::getenv("BERTH_FULL") != nullptr;
  const uint32_t num_seeds = full ? 100000 : 200;
  int64_t num_preemptions = 0;
  int64_t num_swap_outs = 0;
  int64_t num_resumed = 0;
  int64_t num_hit_tokens = 0;
  int64_t num_wrong_drafts = 0;
  int64_t num_right_drafts = 0;
  int64_t num_forked = 0;
  int64_t num_constrained = 0;
  int64_t num_embeddings = 0;
  int64_t num_forced_tokens = 0;
  int64_t num_pauses = 0;
  for (uint32_t seed = FirstSeed(); seed <= num_seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomSchedule schedule(seed);
    schedule.Run(/*num_steps=*/full ? 500 : 150);
    num_preemptions += schedule.num_preemptions;
    num_swap_outs += schedule.num_swap_outs;
    num_resumed += schedule.num_resumed;
    num_hit_tokens += schedule.num_hit_tokens;
    num_wrong_drafts += schedule.num_wrong_drafts;
    num_right_drafts += schedule.num_right_drafts;
    num_forked += schedule.num_forked;
    num_constrained += schedule.num_constrained;
    num_embeddings += schedule.num_embeddings;
    num_forced_tokens += schedule.num_forced_tokens;
    num_pauses += schedule.num_pauses;
  }
  EXPECT_GT(num_preemptions, num_seeds) << "the arenas are too large: the test is too easy";
  EXPECT_GT(num_swap_outs, num_seeds / 3);
  EXPECT_GT(num_resumed, num_seeds);
  EXPECT_GT(num_preemptions - num_swap_outs, num_seeds / 3);
  EXPECT_GT(num_hit_tokens, 10 * num_seeds);
  EXPECT_GT(num_wrong_drafts, num_seeds);
  EXPECT_GT(num_right_drafts, num_seeds);
  EXPECT_GT(num_forked, num_seeds);
  EXPECT_GT(num_constrained, 5 * num_seeds);
  EXPECT_GT(num_embeddings, num_seeds);
  EXPECT_GT(num_forced_tokens, 20 * num_seeds);
  EXPECT_GT(num_pauses, 3 * num_seeds);
}

// Random schedules with requests that often continue others, and tiers that hold much of what those left.
TEST(SchedulerProperty, WhatComesBackFromTheTiersIsWhatWentThere) {
  const bool full = std::getenv("BERTH_FULL") != nullptr;
  const uint32_t num_seeds = full ? 20000 : 150;
  int64_t num_restored_tokens = 0;
  int64_t num_disk_reads = 0;
  int64_t num_failed = 0;
  for (uint32_t seed = FirstSeed(); seed <= num_seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomSchedule schedule(seed, /*with_tiers=*/true);
    schedule.Run(/*num_steps=*/full ? 500 : 200);
    num_restored_tokens += schedule.num_restored_tokens;
    num_disk_reads += schedule.num_disk_reads;
    num_failed += schedule.num_failed;
  }
  EXPECT_GT(num_restored_tokens, 10 * num_seeds);
  EXPECT_GT(num_disk_reads, num_seeds / 5);
  EXPECT_GT(num_failed, num_seeds / 5);
}

// Both with quantised checkpoints.
TEST(SchedulerProperty, WhatGoesOnFromAQuantisedCheckpointIsTheSame) {
  const bool full = std::getenv("BERTH_FULL") != nullptr;
  const uint32_t num_seeds = full ? 5000 : 60;
  for (const bool with_tiers : {false, true}) {
    int64_t num_preemptions = 0;
    int64_t num_hit_tokens = 0;
    int64_t num_restored_tokens = 0;
    for (uint32_t seed = FirstSeed(); seed <= num_seeds && !HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (with_tiers ? " with tiers" : ""));
      RandomSchedule schedule(seed, with_tiers, /*checkpoints=*/true);
      schedule.Run(/*num_steps=*/full ? 500 : 150);
      num_preemptions += schedule.num_preemptions;
      num_hit_tokens += schedule.num_hit_tokens;
      num_restored_tokens += schedule.num_restored_tokens;
    }
    EXPECT_GT(num_preemptions, num_seeds / 2);
    EXPECT_GT(num_hit_tokens, 10 * num_seeds);
    if (with_tiers) {
      EXPECT_GT(num_restored_tokens, 5 * num_seeds);
    }
  }
}

// Many tenants with priorities and weights, and tokens and cache that cost differently.
TEST(SchedulerProperty, EveryRequestEndsUnderFairShares) {
  const bool full = std::getenv("BERTH_FULL") != nullptr;
  const uint32_t num_seeds = full ? 10000 : 80;
  for (const bool with_tiers : {false, true}) {
    int64_t num_preemptions = 0;
    for (uint32_t seed = FirstSeed(); seed <= num_seeds && !HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (with_tiers ? " with tiers" : ""));
      RandomSchedule schedule(seed, with_tiers);
      schedule.num_tenants = schedule.Between(1, 6);
      auto policy = std::make_unique<FairPolicy>(
          FairPolicy::Options{.weights = {.by_tenant = {{"1", 3}, {"2", 0.1}}, .others = 0.5},
                              .decode_token_cost = static_cast<double>(schedule.Between(0, 3)),
                              .cache_gib_second_cost = schedule.OneIn(2) ? 0 : 1e6,
                              .max_wait = absl::Seconds(schedule.Between(0, 40)),
                              .max_idle_tenants = static_cast<size_t>(schedule.Between(0, 4))});
      const TenantAccounts& accounts = policy->accounts();
      schedule.policy = std::move(policy);
      schedule.Run(/*num_steps=*/full ? 500 : 150);
      num_preemptions += schedule.num_preemptions;
      EXPECT_EQ(accounts.num_busy(), 0u);
      EXPECT_LE(accounts.num_accounts(), 4u);
    }
    EXPECT_GT(num_preemptions, num_seeds / 2);
  }
}

// A policy may be unfair, but never wrong: every request still ends, with its tokens.
TEST(SchedulerProperty, EveryRequestEndsWhateverThePolicyChooses) {
  const bool full = std::getenv("BERTH_FULL") != nullptr;
  const uint32_t num_seeds = full ? 10000 : 80;
  for (const bool with_tiers : {false, true}) {
    int64_t num_preemptions = 0;
    int64_t num_swap_outs = 0;
    for (uint32_t seed = FirstSeed(); seed <= num_seeds && !HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (with_tiers ? " with tiers" : ""));
      RandomSchedule schedule(seed, with_tiers);
      schedule.policy = std::make_unique<RandomPolicy>(seed);
      schedule.Run(/*num_steps=*/full ? 500 : 150);
      num_preemptions += schedule.num_preemptions;
      num_swap_outs += schedule.num_swap_outs;
    }
    EXPECT_GT(num_preemptions, num_seeds / 2);
    EXPECT_GT(num_swap_outs, num_seeds / 5);
  }
}

}  // namespace
}  // namespace berth
