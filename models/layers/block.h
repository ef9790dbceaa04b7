// The residual block, the form of almost every layer: a mixer of tokens, then a feed-forward. Each stands between
// norms, and its output is added to the stream. A family chooses the parts. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_BLOCK_H_
#define BERTH_MODELS_LAYERS_BLOCK_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "cache/spec.h"
#include "models/layers/norm.h"
#include "models/layers/residual_stream.h"
#include "models/step/step_batch.h"

namespace berth {

// The part of a layer that lets a token see others, through the cache: attention, or a recurrence.
class Mixer {
 public:
  virtual ~Mixer() = default;
  // `dtype` is the model's.
  virtual LayerCacheSpec cache_spec(DType dtype) const = 0;
  // x: [tokens, hidden] -> [tokens, hidden].
  virtual at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const = 0;
};

// The part of a layer that treats each token alone.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x: [tokens, hidden] -> [tokens, hidden].
  virtual at::Tensor operator()(const at::Tensor& x, Execution& execution) const = 0;
};

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  virtual LayerCacheSpec cache_spec() const = 0;
  // Adds the layer's output, or its parts' outputs, to the stream of the batch's tokens.
  virtual void Forward(ResidualStream& stream, const StepBatch& batch) const = 0;
};

// x += residual_scale * post_mixer_norm(mixer(input_norm(x))), then the same with pre_mlp_norm, mlp, post_mlp_norm.
// Any part may be absent. The stream x may be float32 in a bfloat16 model: the parts then see it rounded.
struct Block : public DecoderLayer {
  Block(DType dtype, std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> mlp)
      : dtype(dtype), mixer(std::move(mixer)), mlp(std::move(mlp)) {}

  LayerCacheSpec cache_spec() const override;
  void Forward(ResidualStream& stream, const StepBatch& batch) const override;

  DType dtype;  // the model's
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<FeedForward> mlp;
  Norm input_norm, post_mixer_norm, pre_mlp_norm, post_mlp_norm;
  double residual_scale = 1;
};

// x += mixer(n) + mlp(n), both on the same normed input n.
struct ParallelBlock : public Block {
  using Block::Block;
  void Forward(ResidualStream& stream, const StepBatch& batch) const override;
};

// Two mixers on the same input, summed (falcon_h1). At most one of them keeps keys and values.
class MixerPair : public Mixer {
 public:
  MixerPair(std::unique_ptr<Mixer> first, std::unique_ptr<Mixer> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  std::unique_ptr<Mixer> first_, second_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_BLOCK_H_
