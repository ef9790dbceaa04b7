// A Scheduler over a tiny cache and the fake model, stepped by hand and checked after every step.
#ifndef BERTH_TESTS_SCHEDULER_SCHEDULER_HARNESS_H_
#define BERTH_TESTS_SCHEDULER_SCHEDULER_HARNESS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cache/cache.h"
#include "models/step.h"
#include "scheduler/output/output_constraint.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/tiers/saver.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/request_record.h"
#include "tests/testing/tiny_cache.h"

namespace berth {

// Prompts of up to `chunk` tokens a step, whose prefixes and states are shared.
inline Scheduler::Options SharingOptions(int64_t chunk) {
  Scheduler::Options options;
  options.max_running = 8;
  options.max_step_tokens = 32;
  options.prefill_chunk_tokens = chunk;
  options.max_sequence_tokens = 1000;
  options.share_prefixes = true;
  options.state_checkpoint_tokens = Scheduler::Options::kAutoCheckpoints;
  return options;
}

// What a row of a plan was, kept beyond the step.
struct RowShape {
  int64_t start = 0;
  int64_t num_tokens = 0;
  bool sample = false;

  friend bool operator==(const RowShape&, const RowShape&) = default;
};
inline void PrintTo(const RowShape& row, std::ostream* os) {
  *os << row.num_tokens << " from " << row.start << (row.sample ? ", sampled" : "");
}

// Keeps what it is given.
struct RecordingSaveSink : SaveSink {
  bool ready() const override { return is_ready; }
  void Take(SavedRequest saved) override { taken.push_back(std::move(saved)); }

  bool is_ready = true;
  std::vector<SavedRequest> taken;
};

struct SchedulerHarness {
  SchedulerHarness(const std::vector<LayerCacheSpec>& layers, int64_t arena_size, Scheduler::Options options,
                   int64_t piece_bytes = 256, bool checkpoints = false, double state_share = 1)
      : options(options), tiny(layers, arena_size, piece_bytes, checkpoints, state_share), runner(tiny.cache.get()) {
    options.vocab_size = runner.info().vocab_size;
    auto made = Scheduler::Create(tiny.cache.get(), options);
    EXPECT_TRUE(made.ok()) << made.status();
    scheduler = *std::move(made);
    baseline = GetOccupancy();
  }

  // A request with a prompt all its own. Its key is also its seed.
  Request MakeRequest(int64_t prompt_tokens, int64_t max_tokens) {
    Request request;
    request.key = ++last_key;
    request.sampling.seed = request.key;
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<int32_t>((request.key * 31 + i * 7) % 100));
    }
    if (tiny.cache->plan().has_cross()) request.encoder_tokens = {static_cast<int32_t>(request.key % 100), 3, 5};
    request.max_tokens = max_tokens;
    request.arrival = clock.Now();
    return request;
  }
  RequestKey Add(Request request) {
    const RequestKey key = request.key;
    requests[key] = request;
    if (request.progress != nullptr) records[key].tokens = request.progress->tokens;
    const absl::Status replayed = ReplayProgress(&request);
    EXPECT_TRUE(replayed.ok()) << replayed;
    scheduler->Add(std::move(request));
    return key;
  }
  RequestKey Add(int64_t prompt_tokens, int64_t max_tokens) { return Add(MakeRequest(prompt_tokens, max_tokens)); }

  // One step as the engine makes it.
  void Step() {
    scheduler->EndDue(clock.Now(), &events);
    shapes.clear();
    num_decode_rows = 0;
    if (!scheduler->empty()) {
      const StepPlan& plan = scheduler->Plan(clock.Now());
      EXPECT_LE(plan.num_tokens, options.max_step_tokens);
      EXPECT_LE(scheduler->counts().num_running, options.max_running);
      for (const StepRow& row : plan.rows) {
        const int64_t n = row.num_tokens();
        EXPECT_LE(n, options.prefill_chunk_tokens);
        const int64_t end = row.start + n;
        const bool is_aligned = end % scheduler->prefill_chunk_tokens() == 0 || end >= row.prompt_length - 1;
        EXPECT_TRUE(is_aligned || !options.aligned_prefill_chunks || tiny.cache->plan().has_cross()) << end;
        EXPECT_LE(static_cast<int64_t>(row.encoder_tokens.size()), scheduler->max_encoder_tokens());
        shapes.push_back({row.start, n, row.sample});
      }
      num_decode_rows = plan.num_decode_rows;
      ++num_steps;
      if (plan.empty()) return TakeEvents();  // all wait for the disk
      const absl::Status status = runner.Run(plan, &result);
      if (status.ok()) {
        scheduler->Commit(result, clock.Now(), &events);
      } else {
        scheduler->FailStep(status, clock.Now(), &events);
      }
    }
    TakeEvents();
  }
  // Steps until no sequence is left.
  void RunToEnd(int max_steps = 100000) {
    for (int i = 0; i < max_steps && !scheduler->empty() && !::testing::Test::HasFailure(); ++i) Step();
    EXPECT_TRUE(scheduler->empty()) << "still at work after " << max_steps << " steps";
  }
  void TakeEvents() {
    for (const TokenEvent& event : events) {
      const auto request = requests.find(event.key);
      EXPECT_TRUE(request == requests.end() || event.output < request->second.num_outputs) << event.output;
      records[event.key].Apply(event);
    }
    events.clear();
    EXPECT_EQ(runner.mismatch(), "");
    const absl::Status status = tiny.cache->CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status;
  }

  Occupancy GetOccupancy() const {
    Occupancy occupancy;
    tiny.cache->GetOccupancy(options.prefill_chunk_tokens, 1 << 20, &occupancy);
    return occupancy;
  }
  // Every byte is back, every request ended once, and its tokens are those that it gets alone.
  void ExpectAllEnded() {
    tiny.cache->EvictAll();
    const Occupancy now = GetOccupancy();
    EXPECT_EQ(now.num_leases, 0);
    EXPECT_EQ(now.unassigned_free_bytes, baseline.unassigned_free_bytes);
    EXPECT_EQ(now.largest_admissible_tokens, baseline.largest_admissible_tokens);
    EXPECT_EQ(scheduler->counts().num_running, 0);
    EXPECT_EQ(scheduler->counts().num_waiting, 0);
    EXPECT_EQ(scheduler->counts().num_paused, 0);
    EXPECT_EQ(scheduler->counts().num_new, 0);
    EXPECT_EQ(scheduler->counts().waiting_tokens, 0);
    for (const auto& [key, request] : requests) {
      const RequestRecord& record = records[key];
      EXPECT_EQ(record.num_ends, 1) << "request " << key;
      EXPECT_FALSE(record.token_after_end) << "request " << key;
      EXPECT_LT(record.others.size(), static_cast<size_t>(request.num_sequences())) << "request " << key;
      const std::vector<FakeModelRunner::Answer> answers = FakeModelRunner::AnswersTo(request);
      ExpectAnswer(record, answers[0], key, 0);
      if (!record.tokens.empty() && request.progress == nullptr) ExpectScores(record, request);
      if (record.finish == FinishReason::kStop || !record.embedding.empty()) {
        EXPECT_EQ(record.embedding, FakeModelRunner::EmbeddingOf(request)) << "request " << key;
      }
      for (int32_t i = 1; i < request.num_outputs; ++i) ExpectAnswer(records[key].others[i], answers[i], key, i);
    }
  }
  // The prompt's logprobs came once, with the first token.
  static void ExpectScores(const RequestRecord& record, const Request& request) {
    const std::vector<TokenLogprob> expected = FakeModelRunner::ScoresOf(request);
    const std::vector<TokenLogprob>& entries = record.prompt_logprobs.entries;
    ASSERT_EQ(entries.size(), expected.size()) << "request " << request.key;
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(entries[i].token, expected[i].token) << "request " << request.key << ", entry " << i;
      ASSERT_EQ(entries[i].logprob, expected[i].logprob) << "request " << request.key << ", entry " << i;
    }
  }
  // What one output got is its answer, or as much of that as it was given time for.
  static void ExpectAnswer(const RequestRecord& record, FakeModelRunner::Answer answer, RequestKey key, int output) {
    SCOPED_TRACE(testing::Message() << "request " << key << ", output " << output);
    EXPECT_FALSE(record.token_after_end);
    if (record.finish == FinishReason::kStop || record.finish == FinishReason::kLength) {
      EXPECT_EQ(record.finish, answer.finish);
    } else if (absl::StrContains(record.error.message(), "the constraint leaves")) {
      EXPECT_EQ(answer.finish, FinishReason::kError) << record.error;
    } else {
      ASSERT_LE(record.tokens.size(), answer.tokens.size());
      answer.tokens.resize(record.tokens.size());
    }
    EXPECT_EQ(record.tokens, answer.tokens);
  }

  Scheduler::Options options;
  TinyCache tiny;
  FakeModelRunner runner;
  FakeClock clock;
  std::unique_ptr<Scheduler> scheduler;
  Occupancy baseline;
  StepResult result;
  std::vector<TokenEvent> events;
  RequestKey last_key = 0;
  std::map<RequestKey, Request> requests;
  std::map<RequestKey, RequestRecord> records;
  // The last step:
  std::vector<RowShape> shapes;
  int64_t num_decode_rows = 0;
  int64_t num_steps = 0;
};

}  // namespace berth

#endif  // BERTH_TESTS_SCHEDULER_SCHEDULER_HARNESS_H_
