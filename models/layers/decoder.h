// A decoder-only model of layers one after another: embedding, layers, final norm, head. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_DECODER_H_
#define BERTH_MODELS_LAYERS_DECODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/spec.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/layers/model.h"
#include "models/layers/norm.h"
#include "models/step/step_batch.h"

namespace berth {

// Turns the stream into logits.
struct Head {
  Norm norm;  // undefined: none
  Linear linear;
  double scale = 1;    // of the logits
  double softcap = 0;  // 0: none

  // x: [tokens, hidden] -> logits of the batch's sampling rows, [sample_rows, vocab]; undefined without any. In
  // float32, or, off the CPU, in the linear layer's type if nothing changes its numbers. Hands on those of scored
  // tokens, and the hidden states of pooled ones.
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const;
  // The hidden states of the tokens at these indices of x, after the norm: [indices, hidden].
  at::Tensor States(const at::Tensor& x, const at::Tensor& indices, Execution& execution) const;
  // Their logits: [indices, vocab].
  at::Tensor Logits(const at::Tensor& x, const at::Tensor& indices, Execution& execution) const;
};

class DecoderModel : public Model {
 public:
  struct Parts {
    at::Tensor embedding;           // [vocab, hidden]
    double embedding_scale = 1;     // of the embedded tokens
    bool float32_residual = false;  // the layers' sum is kept in float32 whatever the weights' type
    std::vector<std::unique_ptr<DecoderLayer>> layers;
    Head head;
    int64_t rope_switch_length = 0;
    int64_t max_shareable_tokens = 0;
  };

  explicit DecoderModel(Parts parts) : parts_(std::move(parts)) {}

  std::vector<LayerCacheSpec> cache_specs() const override;
  int64_t vocab_size() const override { return parts_.embedding.size(0); }
  int64_t hidden_size() const override { return parts_.embedding.size(1); }
  int64_t rope_switch_length() const override { return parts_.rope_switch_length; }
  int64_t max_shareable_tokens() const override { return parts_.max_shareable_tokens; }
  at::Tensor Forward(const StepBatch& batch) const override;

 private:
  Parts parts_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_DECODER_H_
