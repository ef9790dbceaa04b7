// What a step runs: the whole model behind one call. Families build one; most build a DecoderModel. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_MODEL_H_
#define BERTH_MODELS_LAYERS_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cache/spec.h"
#include "models/step/step_batch.h"

namespace berth {

class Model {
 public:
  virtual ~Model() = default;

  // By layer.
  virtual std::vector<LayerCacheSpec> cache_specs() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t hidden_size() const = 0;
  // ModelInfo::rope_switch_length.
  virtual int64_t rope_switch_length() const { return 0; }
  // ModelInfo::max_shareable_tokens.
  virtual int64_t max_shareable_tokens() const { return 0; }
  // ModelInfo::position_limit.
  virtual int64_t position_limit() const { return 0; }

  // Runs the batch and writes its cache. Gives the logits of the scored tokens to batch.scored_logits(), and the
  // hidden states of the pooled ones to batch.pooled_states(). Returns the logits of the rows that sample,
  // [sample_rows, vocab], float32 or bfloat16; undefined when none does.
  virtual at::Tensor Forward(const StepBatch& batch) const = 0;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_MODEL_H_
