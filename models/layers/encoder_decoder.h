// An encoder-decoder model. The encoders of a step run first, over whole prompts, and write the keys and values of
// their output to the cross blocks. From then on the decoder runs like any other. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_ENCODER_DECODER_H_
#define BERTH_MODELS_LAYERS_ENCODER_DECODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cache/spec.h"
#include "models/layers/block.h"
#include "models/layers/decoder.h"
#include "models/layers/encoder_attention.h"
#include "models/layers/model.h"
#include "models/layers/norm.h"
#include "models/layers/positions.h"
#include "models/layers/residual_stream.h"
#include "models/step/step_batch.h"

namespace berth {

// Where the norm of a layer's part stands: x + part(norm(x)), or norm(x + part(x)) (BART).
enum class NormSide { kBefore, kAfterSum };

struct EncoderLayer {
  EncoderSelfAttention attention;
  std::unique_ptr<FeedForward> mlp;
  Norm attention_norm, mlp_norm;
};

struct CrossDecoderLayer {
  std::unique_ptr<Mixer> attention;
  std::unique_ptr<CrossAttention> cross;
  std::unique_ptr<FeedForward> mlp;
  Norm attention_norm, cross_norm, mlp_norm;
};

class EncoderDecoderModel : public Model {
 public:
  // The parts that both sides have before their layers.
  struct Side {
    at::Tensor embedding;  // [vocab, hidden]
    Norm embedding_norm;   // undefined: none
  };
  struct Parts {
    DType dtype = DType::kFloat32;
    NormSide norm_side = NormSide::kBefore;
    double embedding_scale = 1;
    std::unique_ptr<PositionEmbedding> positions;  // null: none
    Side encoder, decoder;
    std::vector<EncoderLayer> encoder_layers;
    Norm encoder_norm;  // after the layers; undefined: none
    std::vector<CrossDecoderLayer> decoder_layers;
    Head head;
    int64_t position_limit = 0;
  };

  explicit EncoderDecoderModel(Parts parts) : parts_(std::move(parts)) {}

  std::vector<LayerCacheSpec> cache_specs() const override;
  int64_t vocab_size() const override { return parts_.decoder.embedding.size(0); }
  int64_t hidden_size() const override { return parts_.decoder.embedding.size(1); }
  int64_t position_limit() const override { return parts_.position_limit; }
  at::Tensor Forward(const StepBatch& batch) const override;

 private:
  ResidualStream Embed(const Side& side, const at::Tensor& token_ids, const at::Tensor& positions,
                       Execution& execution) const;
  // Adds one part of a layer to the stream, with its norm.
  template <typename Part>
  void Add(ResidualStream& stream, const Norm& norm, const Part& part, Execution& execution) const;
  // Runs the step's encoders and writes the cross blocks of every decoder layer.
  void Encode(const StepBatch& batch) const;

  Parts parts_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_ENCODER_DECODER_H_
