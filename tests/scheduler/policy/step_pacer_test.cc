#include "scheduler/policy/step_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/scheduler.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

constexpr int64_t kTargetMs = 50;
constexpr absl::Duration kTarget = absl::Milliseconds(kTargetMs);

TEST(StepPacerTest, WithoutATargetThereIsNoLimit) {
  StepPacer pacer(absl::ZeroDuration());
  pacer.OnStep(absl::Seconds(10), 100, 1);
  EXPECT_GT(pacer.MostPrefillTokens(), 1 << 30);
}

TEST(StepPacerTest, FillsWhatDecodingLeavesOfTheTarget) {
  StepPacer pacer(kTarget);
  pacer.OnStep(absl::Milliseconds(10), 0, 4);
  for (int i = 0; i < 50; ++i) {
    const int64_t tokens = pacer.MostPrefillTokens();
    pacer.OnStep(absl::Milliseconds(10) + absl::Microseconds(100) * tokens, tokens, 4);
  }
  EXPECT_NEAR(static_cast<double>(pacer.MostPrefillTokens()), 400, 10);
}

// Where decoding alone takes longer than the target, prompts still progress.
TEST(StepPacerTest, AlwaysLeavesPrefillAQuarter) {
  StepPacer pacer(kTarget);
  pacer.OnStep(absl::Milliseconds(200), 0, 4);
  for (int i = 0; i < 50; ++i) {
    const int64_t tokens = pacer.MostPrefillTokens();
    pacer.OnStep(absl::Milliseconds(200) + absl::Microseconds(100) * tokens, tokens, 4);
  }
  EXPECT_GE(pacer.MostPrefillTokens(), 60);
  EXPECT_LE(pacer.MostPrefillTokens(), 125);
  for (int i = 0; i < 100; ++i) pacer.OnStep(absl::Seconds(100), 1, 4);
  pacer.OnStep(absl::Milliseconds(200), 0, 4);
  EXPECT_EQ(pacer.MostPrefillTokens(), 1);
}

// With prompts that never end, what decoding takes would never be seen.
TEST(StepPacerTest, NowAndThenAStepOnlyDecodes) {
  StepPacer pacer(kTarget);
  int num_probes = 0;
  for (int i = 0; i < 640; ++i) {
    const int64_t tokens = pacer.MostPrefillTokens();
    num_probes += tokens == 0 ? 1 : 0;
    pacer.OnStep(absl::Milliseconds(30) + absl::Microseconds(100) * tokens, tokens, 4);
  }
  EXPECT_EQ(num_probes, 10);
  EXPECT_NEAR(static_cast<double>(pacer.MostPrefillTokens()), 200, 10) << "20 ms are left of the target";
}

// Nothing is admitted in it.
TEST(StepPacerTest, AProbeLastsOneStepWhateverThatComputed) {
  StepPacer pacer(kTarget);
  for (int i = 0; i < 63; ++i) pacer.OnStep(absl::Milliseconds(40), 100, 4);
  EXPECT_EQ(pacer.MostPrefillTokens(), 0);
  pacer.OnStep(absl::Milliseconds(10), 1, 31);
  EXPECT_GT(pacer.MostPrefillTokens(), 0);
  for (int i = 0; i < 63; ++i) pacer.OnStep(absl::Milliseconds(40), 100, 4);
  EXPECT_EQ(pacer.MostPrefillTokens(), 0);
  pacer.OnStep(absl::Milliseconds(10), 100, 0);  // no sequence that decodes had room
  EXPECT_GT(pacer.MostPrefillTokens(), 0);
}

// The last chunk of a prompt may have one token, and take as long as a step that decodes.
TEST(StepPacerTest, AFewTokensSayLittle) {
  StepPacer pacer(kTarget);
  pacer.OnStep(absl::Milliseconds(10), 0, 4);
  for (int i = 0; i < 50; ++i) pacer.OnStep(absl::Milliseconds(50), pacer.MostPrefillTokens(), 4);
  const int64_t before = pacer.MostPrefillTokens();
  pacer.OnStep(absl::Milliseconds(14), 1, 4);
  EXPECT_EQ(pacer.MostPrefillTokens(), before);
}

// Four streams, and prompts of 8,000 tokens that always wait, on a virtual clock. A token costs more behind a longer
// context.
class PacedScheduler {
 public:
  PacedScheduler(int64_t target_ms, const std::vector<LayerCacheSpec>& layers = {StaticLayer()},
                 int64_t encoder_tokens = 0)
      : encoder_tokens_(encoder_tokens), tiny_(layers, 20000) {
    Scheduler::Options options;
    options.max_running = 8;
    options.max_step_tokens = 512;
    options.prefill_chunk_tokens = 512;
    options.max_sequence_tokens = 20000;
    options.target_step_time = absl::Milliseconds(target_ms);
    auto made = Scheduler::Create(tiny_.cache.get(), options);
    EXPECT_TRUE(made.ok()) << made.status();
    scheduler_ = *std::move(made);
    for (int i = 0; i < 4; ++i) Add(10, 15000);
    while (num_decode_rows_ < 4) Step();
  }

  // Steps with prompts. A slowness of 4 makes each step take four times as long as at first. Returns the times of the
  // steps, in order.
  std::vector<absl::Duration> Run(int num_steps, double slowness) {
    slowness_ = slowness;
    std::vector<absl::Duration> times;
    for (int i = 0; i < num_steps; ++i) {
      if (scheduler_->counts().num_new == 0) Add(8000, 1);
      times.push_back(Step());
      EXPECT_EQ(num_decode_rows_, 4) << "no stream sits a step out";
    }
    return times;
  }
  absl::Duration decode_time() const { return DecodeTime(4); }
  int64_t prefilled() const { return prefilled_; }
  // Adds a session that resumes after `output` tokens. Their cache is lost, so they are computed again.
  void AddResumed(int64_t prompt, int64_t output) {
    auto progress = std::make_shared<Progress>();
    progress->tokens.assign(output, 1);
    Add(prompt, output + 1, std::move(progress));
  }
  // Tokens of the step that no stream decoded.
  int64_t StepWithoutPrompts() {
    const int64_t before = prefilled_;
    Step();
    return prefilled_ - before;
  }

 private:
  absl::Duration DecodeTime(int64_t rows) const {
    return slowness_ * (absl::Milliseconds(8) + absl::Microseconds(500) * rows);
  }
  void Add(int64_t prompt, int64_t output, std::shared_ptr<Progress> progress = nullptr) {
    Request request;
    request.key = ++last_key_;
    request.prompt.assign(prompt, 1);
    request.max_tokens = output;
    request.encoder_tokens.assign(encoder_tokens_, 1);
    request.arrival = now_;
    request.progress = std::move(progress);
    scheduler_->Add(std::move(request));
  }
  absl::Duration Step() {
    const StepPlan& plan = scheduler_->Plan(now_);
    StepResult result;
    result.rows.resize(plan.rows.size());
    absl::Duration time = DecodeTime(plan.num_decode_rows);
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      result.rows[i].token = 1;
      if (static_cast<int64_t>(i) < plan.num_decode_rows) continue;
      const int64_t tokens = plan.rows[i].num_tokens();
      prefilled_ += tokens + static_cast<int64_t>(plan.rows[i].encoder_tokens.size());
      time += slowness_ * tokens * (absl::Microseconds(60) + absl::Nanoseconds(10) * plan.rows[i].start);
    }
    num_decode_rows_ = plan.num_decode_rows;
    now_ += time;
    scheduler_->Commit(result, now_, &events_);
    events_.clear();
    return time;
  }

  const int64_t encoder_tokens_;
  TinyCache tiny_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<TokenEvent> events_;
  absl::Time now_ = absl::UnixEpoch();
  double slowness_ = 1;
  int64_t num_decode_rows_ = 0;
  int64_t prefilled_ = 0;
  RequestKey last_key_ = 0;
};

absl::Duration Percentile99(std::vector<absl::Duration> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() * 99 / 100];
}

TEST(StepPacerTest, LongPromptsDoNotStallStreams) {
  PacedScheduler without(/*target_ms=*/0);
  EXPECT_GT(Percentile99(without.Run(500, 1)), 1.2 * (kTarget + without.decode_time()));
  PacedScheduler paced(kTargetMs);
  // The machine becomes four times slower, and fast again.
  for (const double slowness : {1.0, 4.0, 1.0}) {
    const int64_t before = paced.prefilled();
    const std::vector<absl::Duration> times = paced.Run(1000, slowness);
    EXPECT_LE(Percentile99(times), std::max(2 * paced.decode_time(), kTarget + paced.decode_time())) << slowness;
    // Prompts get at least their quarter, less what the estimate is too high by.
    const absl::Duration dearest = slowness * (absl::Microseconds(60) + absl::Nanoseconds(10) * 8000);
    EXPECT_GT((paced.prefilled() - before) * dearest, 0.2 * kTarget * 1000) << slowness;
  }
}

// A sequence past its prompt gets a token in each step, as one that decodes. So it ends no probe by catching up.
TEST(StepPacerTest, WhatCatchesUpIsHeldBackInProbesOnly) {
  PacedScheduler paced(/*target_ms=*/11);
  paced.AddResumed(10, 12000);
  int num_probes = 0;
  for (int i = 0; i < 192; ++i) {
    const int64_t tokens = paced.StepWithoutPrompts();
    ASSERT_GT(tokens, 0) << "it has caught up after " << i << " steps; the test needs more tokens";
    num_probes += tokens == 1 ? 1 : 0;
  }
  EXPECT_LE(num_probes, 3);
}

// The encoder's 300 tokens are far over what a step of this target may prefill.
TEST(StepPacerTest, AnEncodersInputIsNotHeldBack) {
  PacedScheduler paced(/*target_ms=*/1, {StaticLayer(), CrossLayer()}, /*encoder_tokens=*/300);
  const int64_t before = paced.prefilled();
  paced.Run(10, 1);
  EXPECT_GE(paced.prefilled() - before, 300);
}

}  // namespace
}  // namespace berth
