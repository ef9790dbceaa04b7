// Sequences of encoder-decoder models: the encoder runs whole in the first step and after a preemption, never else.
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

const Scheduler::Options kOptions = {
    .max_running = 4, .max_step_tokens = 16, .prefill_chunk_tokens = 4, .max_sequence_tokens = 40};

struct EncoderHarness : public SchedulerHarness {
  explicit EncoderHarness(int64_t arena_size = 64, Scheduler::Options options = kOptions)
      : SchedulerHarness({CrossLayer()}, arena_size, options) {
    runner.on_run = [this](const StepPlan& plan) {
      encoded.clear();
      for (const StepRow& row : plan.rows) encoded.push_back(static_cast<int64_t>(row.encoder_tokens.size()));
      forced.clear();
      for (const StepRow& row : plan.rows) forced.emplace_back(row.forced.begin(), row.forced.end());
      return absl::OkStatus();
    };
  }
  RequestKey AddEncoded(int64_t encoder_tokens, int64_t prompt_tokens, int64_t max_tokens) {
    Request request = MakeRequest(prompt_tokens, max_tokens);
    request.encoder_tokens.resize(encoder_tokens);
    for (int64_t i = 0; i < encoder_tokens; ++i) {
      request.encoder_tokens[i] = static_cast<int32_t>((request.key * 17 + i) % 100);
    }
    return Add(std::move(request));
  }

  // The last step, by row:
  std::vector<int64_t> encoded;
  std::vector<std::vector<int32_t>> forced;
};

TEST(Encoder, RunsWholeInTheFirstStepHoweverShortTheChunks) {
  EncoderHarness h;
  h.AddEncoded(/*encoder_tokens=*/11, /*prompt_tokens=*/6, /*max_tokens=*/3);
  h.Step();
  EXPECT_EQ(h.encoded, std::vector<int64_t>{11});
  EXPECT_EQ(h.shapes, (std::vector<RowShape>{{0, 4, false}}));
  EXPECT_EQ(h.scheduler->counts().prompt_tokens, 15);
  h.Step();
  EXPECT_EQ(h.encoded, std::vector<int64_t>{0});
  EXPECT_EQ(h.shapes, (std::vector<RowShape>{{4, 2, true}}));
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().prompt_tokens, 17);
  h.ExpectAllEnded();
}

TEST(Encoder, CountsInTheStepsBudget) {
  EncoderHarness h;
  EXPECT_EQ(h.scheduler->max_encoder_tokens(), 15);
  h.AddEncoded(15, 3, 2);  // leaves one token of 16
  h.AddEncoded(6, 1, 2);
  h.AddEncoded(7, 1, 2);
  h.Step();
  EXPECT_EQ(h.encoded, std::vector<int64_t>{15});
  EXPECT_EQ(h.shapes, (std::vector<RowShape>{{0, 1, false}}));
  h.Step();  // 2 tokens of the first, then 7; 8 more are over the budget
  EXPECT_EQ(h.encoded, (std::vector<int64_t>{0, 6}));
  h.Step();
  EXPECT_EQ(h.encoded, (std::vector<int64_t>{0, 0, 7}));
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Encoder, NobodyOvertakesOneThatWaitsForTheBudget) {
  EncoderHarness h;
  h.AddEncoded(3, 1, 8);
  h.Step();
  h.AddEncoded(15, 1, 2);  // does not fit beside a decoding row
  const RequestKey small = h.AddEncoded(1, 1, 2);
  h.Step();
  EXPECT_EQ(h.encoded, std::vector<int64_t>{0});
  h.RunToEnd();
  EXPECT_GE(h.records[small].times.first_scheduled, h.records[2].times.first_scheduled);
  h.ExpectAllEnded();
}

TEST(Encoder, RunsAgainAfterAPreemption) {
  EncoderHarness h(/*arena_size=*/8);  // 16 blocks
  const RequestKey old = h.AddEncoded(8, 1, 39);
  const RequestKey young = h.AddEncoded(8, 1, 30);
  int num_encoded = 0;
  while (!h.scheduler->empty() && !testing::Test::HasFailure()) {
    h.Step();
    for (int64_t n : h.encoded) num_encoded += n > 0 ? 1 : 0;
  }
  EXPECT_EQ(h.records[old].times.num_preemptions, 0);
  EXPECT_GE(h.records[young].times.num_preemptions, 1);
  EXPECT_EQ(num_encoded, 2 + h.scheduler->counts().num_preemptions);
  EXPECT_EQ(h.scheduler->counts().prompt_tokens, 18) << "recomputed tokens were counted again";
  h.ExpectAllEnded();
}

TEST(Encoder, WaitingTokensIncludeTheEncoders) {
  EncoderHarness h;
  h.AddEncoded(9, 2, 1);
  EXPECT_EQ(h.scheduler->counts().waiting_tokens, 11);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Forced, TheFirstAndTheLastTokenAreGivenToTheirRows) {
  EncoderHarness h;
  Request request = h.MakeRequest(1, 3);
  request.forced_first = {42};
  request.forced_last = {7};
  const RequestKey key = h.Add(std::move(request));
  h.Step();
  EXPECT_EQ(h.forced, (std::vector<std::vector<int32_t>>{{42}}));
  h.Step();
  EXPECT_EQ(h.forced, (std::vector<std::vector<int32_t>>{{}}));
  h.Step();
  EXPECT_EQ(h.forced, (std::vector<std::vector<int32_t>>{{7}}));
  EXPECT_EQ(h.records[key].tokens.front(), 42);
  EXPECT_EQ(h.records[key].tokens.back(), 7);
  h.ExpectAllEnded();
}

TEST(Forced, TheLastWinsWhereItIsTheFirstToo) {
  EncoderHarness h;
  Request request = h.MakeRequest(1, 1);
  request.forced_first = {42};
  request.forced_last = {7};
  const RequestKey key = h.Add(std::move(request));
  h.Step();
  EXPECT_EQ(h.records[key].tokens, std::vector<int32_t>{7});
  h.ExpectAllEnded();
}

TEST(Encoder, AStepOfOneTokenIsRefused) {
  TinyCache tiny({CrossLayer()}, 8);
  const auto made =
      Scheduler::Create(tiny.cache.get(), {.max_running = 1, .max_step_tokens = 1, .max_sequence_tokens = 9});
  EXPECT_EQ(made.status().message(),
            "max_step_tokens is 1; at least 2 are needed: one for the encoder, one for the decoder");
}

}  // namespace
}  // namespace berth
