// Constrained requests in every regime: their outputs are those of masking token by token, without any cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/scheduler/output/constrained_requests.h"
#include "tests/scheduler/scheduler_harness.h"
#include "tests/testing/fake_constraint.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

Request Constrained(Request request, FakeConstraint::Options options = {}) {
  if (request.stop_token_ids.empty()) request.stop_token_ids = {kEnd};
  options.end_tokens = {request.stop_token_ids[0]};
  options.seed += request.key;
  request.constraint = std::make_shared<FakeConstraint>(options);
  return request;
}

Request Beams(Request request, int64_t num_beams) {
  request.beams = {.num_beams = num_beams};
  request.num_outputs = num_beams;
  return request;
}

TEST(Constraint, OutputsAreThoseOfMaskingTokenByToken) {
  for (const auto& layers : AllLayers()) {
    for (const int64_t mask_threads : {0, 2}) {
      Scheduler::Options options = kOptions;
      options.mask_threads = mask_threads;
      SchedulerHarness h(layers, 64, options);
      for (int i = 0; i < 12; ++i) {
        Request request = h.MakeRequest(1 + 3 * i, 30);
        request.sampling.temperature = i % 2 == 0 ? 0 : 1;
        request.draft_tokens = i % 3 == 0 ? 4 : 0;
        request.num_outputs = i % 5 == 1 ? 3 : 1;
        h.Add(i % 4 == 3 ? request : Constrained(request));
        h.Step();
      }
      h.RunToEnd();
      EXPECT_GT(h.scheduler->counts().forced_tokens, 50);
      h.ExpectAllEnded();
    }
  }
}

TEST(Constraint, ADeadEndEndsThatSequenceAlone) {
  for (const int64_t fails_at : {-1, 3}) {
    SchedulerHarness h(HybridLayers(), 64, kOptions);
    Request request = h.MakeRequest(5, 30);
    request.num_outputs = 4;
    request.sampling.temperature = 1;
    FakeConstraint::Options options = {.seed = 3, .forced = 0, .complete = 0, .dead = 15, .fails_at = fails_at};
    if (fails_at >= 0) options.dead = 0;
    const RequestKey key = h.Add(Constrained(request, options));
    const RequestKey other = h.Add(4, 20);
    h.RunToEnd();
    const RequestRecord& record = h.records[key];
    EXPECT_EQ(record.finish, FinishReason::kError);
    const std::string message(record.error.message());
    EXPECT_THAT(message,
                HasSubstr(absl::StrCat("the constraint leaves no token at output token ", record.tokens.size())));
    EXPECT_THAT(message, HasSubstr(fails_at < 0 ? ": a dead end" : ": the parser's limit of 3 tokens"));
    EXPECT_EQ(record.error.code(), absl::StatusCode::kInvalidArgument) << "another grammar may do; a retry does not";
    EXPECT_EQ(h.records[other].finish, FinishReason::kLength);
    h.ExpectAllEnded();
  }
}

TEST(Constraint, WhatMinTokensAndTheMaskLeaveNothingOfIsAnError) {
  SchedulerHarness h({StaticLayer()}, 64, kOptions);
  Request complete = Choosing(h.MakeRequest(3, 20), {Range(0, 4)});
  complete.min_tokens = 6;
  const RequestKey early = h.Add(complete);
  Request awaits_end = Choosing(h.MakeRequest(3, 20), {{1, 2, 3}, {1, 2, 3, 4, 5, 6, 7}});
  awaits_end.min_tokens = 5;
  const RequestKey longer = h.Add(awaits_end);
  Request stops = Choosing(h.MakeRequest(3, 20), {Range(0, 9)});
  stops.stop_token_ids.push_back(5);
  stops.min_tokens = 8;
  const RequestKey banned = h.Add(stops);
  h.RunToEnd();
  EXPECT_THAT(std::string(h.records[early].error.message()),
              HasSubstr("no token at output token 4: only the end may come, which min_tokens of 6 bans"));
  EXPECT_EQ(h.records[longer].tokens.size(), 7u) << "min_tokens made it the longer one";
  EXPECT_EQ(h.records[longer].finish, FinishReason::kStop);
  EXPECT_EQ(h.records[banned].finish, FinishReason::kError);
  EXPECT_EQ(h.records[banned].tokens, Range(0, 5));
  h.ExpectAllEnded();
}

TEST(Constraint, TokensOfTheModelsConfigurationComeBeforeItAndNoneEndsItByForce) {
  SchedulerHarness h({CrossLayer(), StaticLayer()}, 64, kOptions);
  Request request = Choosing(h.MakeRequest(2, 5), {Range(10, 9)});
  request.forced_first = {77};
  request.forced_last = {kEnd};
  const RequestKey key = h.Add(request);
  Request sampled = Constrained(h.MakeRequest(2, 20));
  sampled.forced_first = {7, 8};
  sampled.num_outputs = 3;
  h.Add(sampled);
  h.RunToEnd();
  EXPECT_EQ(h.records[key].tokens, (std::vector<int32_t>{77, 10, 11, 12, 13}));
  EXPECT_EQ(h.records[key].finish, FinishReason::kLength);
  h.ExpectAllEnded();
}

TEST(Constraint, DraftsAreCutToWhatItAllows) {
  for (const int64_t draft_tokens : {0, 6}) {
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 64, kOptions);
    int64_t num_masks = 0;
    h.runner.on_run = [&](const StepPlan& plan) {
      for (const StepRow& row : plan.rows) {
        if (row.masks == nullptr) continue;
        // Every draft is a token that the mask of its place allows.
        const uint32_t* mask = row.masks->Wait();
        for (int32_t draft : row.drafts) {
          EXPECT_NE(mask[draft / 32] >> (draft % 32) & 1, 0u);
          mask += row.masks->num_words();
          ++num_masks;
        }
      }
      return absl::OkStatus();
    };
    for (int i = 0; i < 20; ++i) {
      Request request = h.MakeRequest(12, 40);
      for (size_t t = 0; t < request.prompt.size(); ++t) request.prompt[t] = static_cast<int32_t>(t * t % 3);
      request.sampling.temperature = 0;
      request.draft_tokens = draft_tokens;
      h.Add(Constrained(request, {.forced = 10, .dead = i % 4 == 0 ? 3 : 0}));
    }
    h.RunToEnd();
    EXPECT_EQ(num_masks > 0, draft_tokens > 0);
    EXPECT_EQ(h.scheduler->counts().accepted_draft_tokens > 0, draft_tokens > 0);
    h.ExpectAllEnded();
  }
}

// Counts the calls that may take as long as the vocabulary, on the engine's thread and on others.
class Watched : public FakeConstraint {
 public:
  struct Calls {
    std::atomic<std::thread::id> engine;
    std::atomic<int64_t> on_engine = 0;
    std::atomic<int64_t> masks = 0;
    std::atomic<int64_t> searches = 0;
    std::atomic<int64_t> checks = 0;
  };
  Watched(Options options, Calls* calls) : FakeConstraint(std::move(options)), calls_(calls) {}

  absl::Status FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks) override {
    Count(&calls_->masks);
    return FakeConstraint::FillMasks(drafts, masks);
  }
  absl::Status AppendForced(int64_t limit, std::vector<int32_t>* tokens) override {
    Count(&calls_->searches);
    return FakeConstraint::AppendForced(limit, tokens);
  }
  int64_t CountAllowed(absl::Span<const int32_t> tokens) override {
    Count(&calls_->checks);
    return FakeConstraint::CountAllowed(tokens);
  }

 protected:
  std::unique_ptr<SimpleConstraint> CloneSimple() const override { return std::make_unique<Watched>(*this); }

 private:
  void Count(std::atomic<int64_t>* kind) {
    if (calls_->engine.load() == std::thread::id()) return;  // the test itself asks
    ++*(calls_->engine.load() == std::this_thread::get_id() ? &calls_->on_engine : kind);
  }

  Calls* calls_;
};

TEST(Constraint, TheEnginesThreadDoesNothingAsLongAsTheVocabulary) {
  Scheduler::Options options = kOptions;
  options.mask_threads = 2;
  SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 64, options);
  Watched::Calls calls;
  for (int i = 0; i < 20; ++i) {
    Request request = h.MakeRequest(12, 40);
    for (size_t t = 0; t < request.prompt.size(); ++t) request.prompt[t] = static_cast<int32_t>(t * t % 3);
    request.sampling.temperature = 0;
    request.draft_tokens = 6;
    request.num_outputs = i % 4 == 3 ? 3 : 1;
    request.stop_token_ids = {kEnd};
    FakeConstraint::Options fake = {.seed = static_cast<uint64_t>(i + 1), .end_tokens = {kEnd}, .forced = 10};
    request.constraint = std::make_shared<Watched>(fake, &calls);
    h.Add(std::move(request));
  }
  calls.engine = std::this_thread::get_id();
  h.RunToEnd();
  calls.engine = std::thread::id();
  EXPECT_EQ(calls.on_engine, 0);
  EXPECT_GT(calls.masks, 50);
  EXPECT_GT(calls.searches, 50);
  EXPECT_GT(calls.checks, 10);
  h.ExpectAllEnded();
}

TEST(Constraint, EachBeamHasItsOwn) {
  for (const auto& layers : AllLayers()) {
    for (int64_t seed = 0; seed < 6; ++seed) {
      SchedulerHarness h(layers, 64, kOptions);
      Request request = h.MakeRequest(7, 16);
      request.stop_token_ids = {kEnd, 3, 50};
      h.Add(Beams(Constrained(request, {.seed = static_cast<uint64_t>(100 + seed), .forced = 20, .dead = seed}), 4));
      h.Add(4, 15);
      h.RunToEnd();
      EXPECT_EQ(h.scheduler->counts().forced_tokens, 0) << "a beam's score takes the model's word for each token";
      h.ExpectAllEnded();
    }
  }
}

TEST(Constraint, ABeamSearchMayLeaveFewerOutputsThanWereAskedFor) {
  SchedulerHarness h({StaticLayer()}, 64, kOptions);
  // As in transformers, beams that double others end too, with a score far below. Without a length penalty they do not.
  const RequestKey doubled = h.Add(Beams(Choosing(h.MakeRequest(7, 16), {{1, 2}, {5, 6, 7}}), 4));
  Request single = Beams(Choosing(h.MakeRequest(7, 16), {{1, 2}, {5, 6, 7}}), 4);
  single.beams.length_penalty = 0;
  const RequestKey key = h.Add(single);
  Request none = Beams(Choosing(h.MakeRequest(7, 16), {{1, 2}}), 2);
  none.min_tokens = 5;
  const RequestKey dead = h.Add(none);
  Request cut = Beams(Choosing(h.MakeRequest(7, 2), {{1, 2}, {1, 3, 4}}), 2);
  const RequestKey length = h.Add(cut);
  h.RunToEnd();
  EXPECT_EQ(h.records[key].finish, FinishReason::kStop);
  EXPECT_EQ(h.records[key].others[1].finish, FinishReason::kStop);
  EXPECT_EQ(h.records[key].others[2].error.message(),
            "the constraint leaves the beam search 2 outputs; num_outputs is 4");
  for (int32_t i : {1, 2, 3}) EXPECT_EQ(h.records[doubled].others[i].finish, FinishReason::kStop);
  EXPECT_EQ(h.records[key].num_ends, 1);
  EXPECT_THAT(std::string(h.records[dead].error.message()), HasSubstr("min_tokens of 5 bans"));
  std::map<std::vector<int32_t>, FinishReason> ends;
  ends[h.records[length].tokens] = h.records[length].finish;
  ends[h.records[length].others[1].tokens] = h.records[length].others[1].finish;
  EXPECT_EQ(ends, (std::map<std::vector<int32_t>, FinishReason>{{{1, 2}, FinishReason::kStop},
                                                                {{1, 3}, FinishReason::kLength}}));
  h.ExpectAllEnded();
  Request endless = cut;
  endless.stop_token_ids.clear();
  EXPECT_THAT(std::string(ValidateRequest(endless, 100, 1000).message()), HasSubstr("needs a stop token"));
}

TEST(Constraint, SurvivesPreemptionSwapAndRecomputation) {
  for (const int64_t host_bytes : {0, 1 << 20}) {
    Scheduler::Options options = kOptions;
    options.max_running = 4;
    options.max_step_tokens = 16;
    options.swap.host_tier_bytes = host_bytes;
    options.swap.copy_clock = absl::UnixEpoch;
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 13, options);
    for (int i = 0; i < 6; ++i) {
      Request request = h.MakeRequest(10, 40);
      request.num_outputs = i == 4 ? 2 : 1;
      h.Add(Constrained(request, {.complete = 0}));
    }
    h.RunToEnd();
    EXPECT_GT(h.scheduler->counts().num_preemptions, 2);
    EXPECT_EQ(h.scheduler->counts().num_swap_outs > 0, host_bytes > 0);
    EXPECT_GT(h.scheduler->counts().forced_tokens, 20);
    h.ExpectAllEnded();
  }
}

TEST(Constraint, SurvivesCropsAndTheSwitchOfRotations) {
  for (const int64_t rope_switch_length : {0, 14}) {
    Scheduler::Options options = kOptions;
    options.crop_every = rope_switch_length == 0 ? 5 : 0;
    options.rope_switch_length = rope_switch_length;
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 64, options);
    bool recomputed = false;
    h.runner.on_run = [&](const StepPlan& plan) {
      for (const StepRow& row : plan.rows) {
        recomputed = recomputed || (row.start == 0 && row.sequence_length > 14);
        // What was computed at a short length is gone once the sequence is long.
        if (rope_switch_length > 0 && row.start > 0 && row.start <= 14 && row.sequence_length > 14) {
          EXPECT_TRUE(recomputed);
        }
      }
      return absl::OkStatus();
    };
    for (int i = 0; i < 5; ++i) h.Add(Constrained(h.MakeRequest(6 + i, 30), {.complete = 0}));
    h.RunToEnd();
    EXPECT_TRUE(recomputed);
    EXPECT_GT(h.scheduler->counts().forced_tokens, 20);
    h.ExpectAllEnded();
  }
}

TEST(Constraint, AResumedRequestGoesOnWhereItWas) {
  RecordingSaveSink sink;
  Scheduler::Options options = kOptions;
  options.save_sink = &sink;
  SchedulerHarness h(HybridLayers(), 64, options);
  for (const bool forced_first : {false, true}) {
    Request request = Constrained(h.MakeRequest(9, 30), {.complete = 0});
    if (forced_first) request.forced_first = {9};
    request.saved = true;
    request.autosave_tokens = 1;
    h.Add(request);
    h.RunToEnd();
    ASSERT_GT(sink.taken.size(), 4u);
    for (SavedRequest& saved : sink.taken) {
      if (saved.last) continue;
      Request resumed = request;
      resumed.key = ++h.last_key + 1000;
      resumed.saved = false;
      resumed.progress = std::make_shared<Progress>(*std::move(saved.progress));
      h.Add(resumed);
    }
    sink.taken.clear();
    h.RunToEnd();
  }
  h.ExpectAllEnded();
}

TEST(Constraint, ProgressThatItDoesNotAllowIsRefused) {
  Request request;
  request.constraint =
      std::make_shared<ChoiceConstraint>(std::vector<std::vector<int32_t>>{{1, 2, 3}}, std::vector<int32_t>{kEnd});
  request.progress = std::make_shared<Progress>();
  request.progress->tokens = {1, 2};
  EXPECT_TRUE(ReplayProgress(&request).ok());
  request.progress->tokens = {2};
  EXPECT_EQ(ReplayProgress(&request).code(), absl::StatusCode::kInvalidArgument);
  request.progress->finish = FinishReason::kStop;
  EXPECT_TRUE(ReplayProgress(&request).ok()) << "it had ended, so nothing follows";
}

TEST(Constraint, EndsByDeadlineCancelAndFailedSteps) {
  for (const char* how : {"deadline", "cancel", "failure", "all"}) {
    for (int steps = 0; steps < 6; ++steps) {
      Scheduler::Options options = kOptions;
      options.mask_threads = 1;
      SchedulerHarness h({StaticLayer()}, 64, options);
      Request request = Constrained(h.MakeRequest(20, 60), {.complete = 0});
      request.num_outputs = 2;
      request.deadline = h.clock.Now() + absl::Seconds(1);
      const RequestKey key = h.Add(request);
      for (int i = 0; i < steps; ++i) h.Step();
      if (how == std::string("deadline")) h.clock.Advance(absl::Seconds(1));
      if (how == std::string("cancel")) h.scheduler->Cancel(key, FinishReason::kCancelled);
      if (how == std::string("failure"))
        h.runner.on_run = [](const StepPlan&) { return absl::InternalError("broken"); };
      if (how == std::string("all")) {
        h.scheduler->EndAll(FinishReason::kCancelled, absl::OkStatus(), h.clock.Now(), &h.events);
      }
      h.Step();
      EXPECT_TRUE(h.scheduler->empty()) << how;
      EXPECT_EQ(h.records[key].num_ends, 1);
    }
  }
}

TEST(Constraint, APrefixIsSharedWhateverFollows) {
  Scheduler::Options options = kOptions;
  options.share_prefixes = true;
  SchedulerHarness h(HybridLayers(), 64, options);
  Request first = Constrained(h.MakeRequest(24, 12));
  h.Add(first);
  h.RunToEnd();
  Request second = Constrained(h.MakeRequest(24, 12));
  second.prompt = first.prompt;
  const std::vector<int32_t>& output = h.records[first.key].tokens;
  second.prompt.insert(second.prompt.end(), output.begin(), output.end());
  h.Add(second);
  h.RunToEnd();
  EXPECT_GE(h.scheduler->counts().prefix_hit_tokens, 24);
  h.ExpectAllEnded();
}

}  // namespace
}  // namespace berth
