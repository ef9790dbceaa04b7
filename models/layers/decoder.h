// A decoder-only model: embedding, layers, final norm, head. Families build one from their configuration and weights.
// Engine thread only.
#ifndef BERTH_MODELS_LAYERS_DECODER_H_
#define BERTH_MODELS_LAYERS_DECODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/spec.h"
#include "models/kernels/step_batch.h"
#include "models/layers/attention.h"
#include "models/layers/gated_mlp.h"
#include "models/layers/linear.h"
#include "models/layers/rms_norm.h"

namespace berth {

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  virtual LayerCacheSpec cache_spec() const = 0;
  // x: [tokens, hidden] -> the same, residual included.
  virtual at::Tensor Forward(const at::Tensor& x, const StepBatch& batch) const = 0;
};

// x + post_attention(attention(input(x))), then x + post_mlp(mlp(pre_mlp(x))). The post norms are gemma's; undefined
// elsewhere.
struct AttentionBlock : public DecoderLayer {
  AttentionBlock(Attention attention, GatedMlp mlp, DType dtype);
  LayerCacheSpec cache_spec() const override;
  at::Tensor Forward(const at::Tensor& x, const StepBatch& batch) const override;

  RmsNorm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;
  Attention attention;
  GatedMlp mlp;
  DType dtype;
};

class DecoderModel {
 public:
  struct Parts {
    at::Tensor embedding;           // [vocab, hidden]
    double embedding_scale = 1;     // of the embedded tokens
    bool float32_residual = false;  // the layers' sum is kept in float32 whatever the weights' type
    std::vector<std::unique_ptr<DecoderLayer>> layers;
    RmsNorm final_norm;  // a scale of the logits is folded into its weight
    Linear head;
    double logit_softcap = 0;  // 0: none
  };

  explicit DecoderModel(Parts parts);

  std::vector<LayerCacheSpec> cache_specs() const;
  int64_t vocab_size() const { return parts_.embedding.size(0); }
  int64_t hidden_size() const { return parts_.embedding.size(1); }

  // Runs the batch and writes its cache. Returns the logits of the rows that sample, [sample_rows, vocab], float32;
  // undefined when none does.
  at::Tensor Forward(const StepBatch& batch) const;

 private:
  Parts parts_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_DECODER_H_
