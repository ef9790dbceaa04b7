// Runs steps that only decode as CUDA graphs, which are recorded once for each number of rows and then enqueued as a
// whole. With few tokens a step, the host takes longer to enqueue a model's kernels than the GPU to run
// them.
//
// A step is padded to the next of these numbers (GraphRowsFor). All graphs are for as many keys as the longest sequence
// may have. The first step of a number of rows runs kernel by kernel, padded in the same way. By its end the libraries
// have set up what they set up at their first use of these sizes. The second is recorded.
// Steps with prefill and models with cross-attention are not recorded. Some steps cannot be recorded, because they need
// the host's values (rotations or scales that depend on the length). After the first of these, no further step is
// recorded; that is told once. Engine thread only.
#ifndef BERTH_MODELS_RUNNER_DECODE_GRAPHS_H_
#define BERTH_MODELS_RUNNER_DECODE_GRAPHS_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "models/graph_shape.h"
#include "models/kernels/cuda/graph.h"
#include "models/layers/model.h"
#include "models/step.h"
#include "models/step/step_batch.h"

namespace berth {

class DecodeGraphs {
 public:
  // `model` and `recorder` must outlive it. `sequence_tokens`: of the longest sequence.
  DecodeGraphs(
      const Model* model, ops::cuda::GraphRecorder* recorder, int64_t sequence_tokens,
      std::function<void(const std::string&)> on_refusal = [](const std::string&) {})
      : model_(model),
        recorder_(recorder),
        on_refusal_(std::move(on_refusal)),
        keys_(PowerOfTwoFrom(std::clamp(sequence_tokens, ops::kSplitTokens, kMostGraphKeys))) {}

  // The logits of the step's rows, [rows, vocab], until the next call; what the host knows of the step is then
  // not in `batch`. Undefined: the step fits no shape; `batch` is to be filled. Always the same `batch`. Throws
  // c10::Error when the device is lost, or has no memory for a step that is not recorded.
  at::Tensor Forward(const StepPlan& plan, StepBatch* batch);

  int64_t num_launches() const { return num_launches_; }
  int64_t num_refusals() const { return refusal_.empty() ? 0 : 1; }
  const std::string& refusal() const { return refusal_; }  // why no further step is recorded; empty: they are

 private:
  struct Recorded {
    at::Tensor logits;  // [the graph's rows, vocab]; in memory that all graphs share
    std::unique_ptr<ops::cuda::Graph> graph;
  };
  // The logits of all of the graph's rows, for which `batch` is filled.
  at::Tensor Compute(int64_t rows, StepBatch* batch);
  at::Tensor Launch(Recorded* recorded, StepBatch* batch);

  const Model* model_;
  ops::cuda::GraphRecorder* recorder_;
  std::function<void(const std::string&)> on_refusal_;
  const int64_t keys_;                    // that the graphs' rows may see, a power of two
  std::map<int64_t, Recorded> recorded_;  // by rows: numbers of rows with which a step ran; without a graph: one step
  const void* address_ = nullptr;         // of the batch's tables, which the graphs read
  int64_t num_launches_ = 0;
  std::string refusal_;
};

}  // namespace berth

#endif  // BERTH_MODELS_RUNNER_DECODE_GRAPHS_H_
