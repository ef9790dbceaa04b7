// A model without weights: the next token is a hash of all tokens before it, the encoder's included. It keeps its cache
// where a real model would, in the arena behind the rows' leases. In every step it reads back all that a real model
// could see, so a mistake of the scheduler or the cache shows as a mismatch.
//
// Run is the engine thread's; mismatch() may be read when no step runs.
#ifndef BERTH_TESTS_TESTING_FAKE_MODEL_RUNNER_H_
#define BERTH_TESTS_TESTING_FAKE_MODEL_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache/cache.h"
#include "models/model_runner.h"
#include "models/step.h"
#include "scheduler/request.h"

namespace berth {

class FakeModelRunner : public ModelRunner {
 public:
  // `cache` must outlive the runner; KV layers must be float32, and where checkpoints are quantised states too, of at
  // least 64 numbers.
  explicit FakeModelRunner(Cache* cache, int64_t vocab_size = 100);

  const ModelInfo& info() const override {
    if (on_info) on_info();
    return info_;
  }
  absl::Status Run(const StepPlan& plan, StepResult* result) override;

  // Called when the model is asked what it is, as each Engine::Submit does, on that thread. Set it before.
  std::function<void()> on_info;
  // Called at the start of each step, on its thread; an error fails the step. Set it before the first step.
  std::function<absl::Status(const StepPlan&)> on_run;
  // May change the result of each row that samples, for example to stand for non-finite logits.
  std::function<void(const StepRow&, RowResult*)> on_row;
  // May change the result of each row that pools hidden states.
  std::function<void(const StepRow&, RowResult*)> on_pooled_row;

  // The first thing that was not as it should be; empty: all was.
  const std::string& mismatch() const { return mismatch_; }

  // What a request alone must give, computed without any cache.
  struct Answer {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::kNone;
  };
  static Answer AnswerTo(const Request& request, int64_t vocab_size = 100);
  // The answers of every output: sampled ones each as of a request of its own, or the best beams.
  static std::vector<Answer> AnswersTo(const Request& request, int64_t vocab_size = 100);
  // The logprobs of its prompt; none if it does not ask for them.
  static std::vector<TokenLogprob> ScoresOf(const Request& request, int64_t vocab_size = 100);
  // Its embedding; empty if it does not ask for one.
  static std::vector<float> EmbeddingOf(const Request& request);

  static constexpr int64_t kHiddenSize = 3;

 private:
  absl::Status CheckPlan(const StepPlan& plan) const;
  // Compares what the row's layers hold of tokens before row.start with its history. Empty when they agree.
  std::string CheckVisible(const StepRow& row) const;
  void Write(const StepRow& row);
  // Writes the row's encoder tokens to its cross blocks, or reads what those hold; into *hash the hash of all of them.
  // Empty when what was read belongs together.
  std::string Encode(const StepRow& row, uint64_t* hash);
  // Where a layer keeps token `position` of the row: the token in its key, the hash up to it in its value.
  int32_t* Cell(const StepRow& row, const LayerCacheSlot& slot, int64_t position, bool value) const;
  // Where it keeps encoder token `position`.
  int32_t* CrossCell(const StepRow& row, const LayerCacheSlot& slot, int64_t position, bool value) const;
  // The layer's state in the unit at byte `unit`.
  std::byte* State(int64_t unit, const LayerCacheSlot& slot) const;
  // Where checkpoints are quantised, as a digest that survives that.
  uint64_t ReadState(const StepRow& row, const LayerCacheSlot& slot) const;
  void WriteState(uint64_t digest, std::byte* state) const;
  // What the row's first `length` tokens leave in a state, and the last of them in a value.
  uint64_t LeftBy(const StepRow& row, int64_t length) const;

  Cache* cache_;
  ModelInfo info_;
  std::vector<uint64_t> hashes_;  // of the encoder's tokens and the row's first 0, 1, 2, ... tokens
  std::string mismatch_;
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_FAKE_MODEL_RUNNER_H_
