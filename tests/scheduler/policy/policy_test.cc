// Policies on their own, and what the scheduler asks and tells them.
#include "scheduler/policy/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

std::unique_ptr<Sequence> MakeSequence(RequestKey key) {
  Request request;
  request.key = key;
  request.prompt = {1, 2, 3};
  request.max_tokens = 4;
  return std::make_unique<Sequence>(std::move(request));
}

TEST(FcfsPolicy, AdmitsTheFirstAndPreemptsTheLast) {
  FcfsPolicy policy;
  WaitingSequences waiting;
  std::vector<std::unique_ptr<Sequence>> running;
  for (RequestKey key : {4, 5, 6}) waiting.push_back(MakeSequence(key));
  for (RequestKey key : {1, 2, 3}) running.push_back(MakeSequence(key));
  EXPECT_EQ(policy.PickToAdmit(waiting), waiting[0].get());
  EXPECT_EQ(policy.PickToPreempt(running, *MakeSequence(0)), 2u);
  EXPECT_EQ(policy.PickToPreempt(absl::MakeConstSpan(running).first(1), *MakeSequence(0)), 0u);
}

TEST(FcfsPolicy, GivesEachAllThatIsLeft) {
  FcfsPolicy policy;
  for (TokenUse use : {TokenUse::kDecode, TokenUse::kPrefill, TokenUse::kDrafts, TokenUse::kAdmission}) {
    EXPECT_EQ(policy.TokenLimit(*MakeSequence(1), use, 17), 17);
  }
}

const Scheduler::Options kOptions = {
    .max_running = 4, .max_step_tokens = 16, .prefill_chunk_tokens = 8, .max_sequence_tokens = 1000};

Scheduler::Options With(SchedulingPolicy* policy) {
  Scheduler::Options options = kOptions;
  options.policy = policy;
  return options;
}

// The tenant for which the fewest tokens were computed comes first.
class LeastServedPolicy : public FcfsPolicy {
 public:
  const Sequence* PickToAdmit(const WaitingSequences& waiting) override {
    const auto less = [this](const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
      return tokens[a->request.cache_salt] < tokens[b->request.cache_salt];
    };
    return std::min_element(waiting.begin(), waiting.end(), less)->get();
  }
  void OnComputed(const Sequence& sequence, const ComputedTokens& computed) override {
    tokens[sequence.request.cache_salt] += computed.prefill + computed.decode;
  }

  std::map<std::string, int64_t> tokens;  // by tenant
};

TEST(SchedulingPolicy, MayLetATenantOvertakeAnothersLongQueue) {
  LeastServedPolicy policy;
  Scheduler::Options options = With(&policy);
  options.max_running = 1;
  SchedulerHarness h({StaticLayer()}, 64, options);
  const auto add = [&](const char* tenant) {
    Request request = h.MakeRequest(10, 5);
    request.cache_salt = tenant;
    return h.Add(std::move(request));
  };
  for (int i = 0; i < 5; ++i) add("heavy");
  h.Step();
  const RequestKey light = add("light");
  while (h.records[light].num_ends == 0) {
    h.clock.Advance(absl::Seconds(1));
    h.Step();
  }
  EXPECT_EQ(h.records[1].num_ends, 1);
  EXPECT_EQ(h.records[2].num_ends, 0) << "the light tenant waited for the heavy one's queue";
  h.RunToEnd();
  h.ExpectAllEnded();
  EXPECT_EQ(policy.tokens["heavy"], 5 * (10 + 5 - 1));
  EXPECT_EQ(policy.tokens["light"], 10 + 5 - 1);
}

// Preempts the oldest that it may, or none for a sequence with an even key.
class OldestPolicy : public FcfsPolicy {
 public:
  size_t PickToPreempt(RunningSequences candidates, const Sequence& beneficiary) override {
    for (const std::unique_ptr<Sequence>& candidate : candidates) {
      EXPECT_NE(candidate->request.key, beneficiary.request.key);
    }
    return beneficiary.request.key % 2 == 0 ? kNobody : 0;
  }
};

TEST(SchedulingPolicy, ChoosesWhoIsPreempted) {
  OldestPolicy policy;
  SchedulerHarness h({StaticLayer()}, 8, With(&policy));
  for (int i = 0; i < 3; ++i) h.Add(10, 40);
  while (h.scheduler->counts().num_preemptions == 0) h.Step();
  h.RunToEnd();
  EXPECT_EQ(h.records[1].times.num_preemptions, 0);
  EXPECT_GE(h.records[2].times.num_preemptions, 1);
  h.ExpectAllEnded();
}

TEST(SchedulingPolicy, MayPreemptTheOneThatGrows) {
  struct Yielding : FcfsPolicy {
    size_t PickToPreempt(RunningSequences, const Sequence& beneficiary) override {
      return beneficiary.request.key == 2 ? kItself : kNobody;
    }
  } policy;
  SchedulerHarness h({StaticLayer()}, 8, With(&policy));
  for (int i = 0; i < 3; ++i) {
    Request request = h.MakeRequest(8, 40);
    request.sampling.temperature = 0;
    request.draft_tokens = 4;
    h.Add(std::move(request));
  }
  h.RunToEnd();
  EXPECT_EQ(h.records[1].times.num_preemptions, 0);
  EXPECT_GE(h.records[2].times.num_preemptions, 1);
  h.ExpectAllEnded();
}

TEST(SchedulingPolicy, TheFirstRequestIsNotHeldUpByAPolicyThatSparesEverybody) {
  struct Sparing : FcfsPolicy {
    size_t PickToPreempt(RunningSequences, const Sequence&) override { return kNobody; }
    int64_t TokenLimit(const Sequence&, TokenUse use, int64_t left) override {
      return use == TokenUse::kAdmission ? left : 0;
    }
  } policy;
  SchedulerHarness h({StaticLayer()}, 8, With(&policy));
  for (int i = 0; i < 3; ++i) h.Add(10, 40);
  h.RunToEnd();
  EXPECT_EQ(h.records[1].times.num_preemptions, 0);
  h.ExpectAllEnded();
}

TEST(SchedulingPolicy, DividesTheBudget) {
  struct Halving : FcfsPolicy {
    int64_t TokenLimit(const Sequence&, TokenUse use, int64_t left) override {
      return use == TokenUse::kAdmission ? left / 2 : left;
    }
  } policy;
  SchedulerHarness h({StaticLayer()}, 64, With(&policy));
  for (int i = 0; i < 3; ++i) h.Add(20, 2);
  h.Step();
  EXPECT_EQ(h.shapes, (std::vector<RowShape>{{0, 8, false}, {0, 4, false}, {0, 2, false}}));
  h.RunToEnd();
  h.ExpectAllEnded();
}

// Writes down what it is told.
class RecordingPolicy : public FcfsPolicy {
 public:
  void OnArrival(const Sequence& sequence) override {
    ++num_arrivals;
    EXPECT_EQ(sequence.num_generated(), 0);
  }
  void OnComputed(const Sequence& sequence, const ComputedTokens& computed) override {
    prefill[sequence.request.key] += computed.prefill;
    decode[sequence.request.key] += computed.decode;
  }
  void OnStep(RunningSequences running, absl::Duration time) override {
    for (const std::unique_ptr<Sequence>& sequence : running) {
      token_seconds += static_cast<double>(sequence->num_computed()) * absl::ToDoubleSeconds(time);
    }
  }
  void OnEnd(const Sequence&) override { ++num_ends; }

  int64_t num_arrivals = 0;
  int64_t num_ends = 0;
  double token_seconds = 0;
  std::map<RequestKey, int64_t> prefill;  // by request
  std::map<RequestKey, int64_t> decode;
};

TEST(SchedulingPolicy, IsToldWhatIsComputedAndHeld) {
  RecordingPolicy policy;
  SchedulerHarness h({StaticLayer()}, 64, With(&policy));
  h.runner.on_run = [&](const StepPlan&) {
    h.clock.Advance(absl::Seconds(2));
    return absl::OkStatus();
  };
  h.Add(10, 3);
  h.Add(4, 2);
  h.RunToEnd();
  h.ExpectAllEnded();
  EXPECT_EQ(policy.num_arrivals, 2);
  EXPECT_EQ(policy.num_ends, 2);
  EXPECT_EQ(policy.prefill, (std::map<RequestKey, int64_t>{{1, 10}, {2, 4}}));
  EXPECT_EQ(policy.decode, (std::map<RequestKey, int64_t>{{1, 2}, {2, 1}}));
  // Held after each step: 8, 10, 11 and 12 tokens, and 4 and 5.
  EXPECT_EQ(policy.token_seconds, 2 * (8 + 10 + 11 + 12 + 4 + 5));
}

TEST(SchedulingPolicy, HearsOfTheOutputsOfARequestAndOfWhatIsComputedAgain) {
  RecordingPolicy policy;
  SchedulerHarness h({CrossLayer()}, 64, With(&policy));
  Request request = h.MakeRequest(6, 3);
  request.num_outputs = 2;
  h.Add(std::move(request));
  h.RunToEnd();
  h.ExpectAllEnded();
  EXPECT_EQ(policy.num_arrivals, 1);
  EXPECT_EQ(policy.num_ends, 2);
  // The encoder's three tokens and five of the prompt once; the prompt's last token and two more for each output.
  EXPECT_EQ(policy.prefill[1] + policy.decode[1], 3 + 5 + 2 * (1 + 2));
}

}  // namespace
}  // namespace berth
