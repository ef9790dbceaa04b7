// gemma3n's text model. The stream has four copies; each layer computes one, and predicts and corrects the others
// (AltUp). Beside attention there is a low-rank residual (LAuReL). Each layer has an input of its own. The first layers
// have sparse gates. Late layers read the keys and values of earlier ones, and of a prompt compute only what is read
// (StepOutputs). Source: transformers' models/gemma3n.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

struct Gemma3nConfig {
  TransformerConfig transformer;
  std::vector<int64_t> intermediates;  // by layer
  std::vector<double> sparsities;      // by layer; 0: none
  int64_t streams = 4;
  int64_t active = 0;  // the stream that layers compute
  bool scale_corrected = true;
  int64_t laurel_rank = 64;
  int64_t input_dim = 256;            // of a layer's own input
  int64_t input_vocab_size = 262144;  // tokens past it get the inputs of token 0
  int64_t num_borrowing_layers = 0;
};

LinearWeights LoadMatrix(WeightLoader& weights, const std::string& name, int64_t in, int64_t out) {
  return LoadLinear(weights, in, {{.name = name, .out = out}});
}

// The gate keeps what stands out of the token's distribution: relu(x - (mean + deviations * std)).
struct SparseMlp : public GatedMlp {
  float deviations = 0;

  at::Tensor operator()(const at::Tensor& x, Execution& execution) const override {
    const at::Tensor both =
        gate_up(x, execution).to(at::kFloat);  // what is near the cutoff should not hang on a rounding
    const int64_t dim = both.size(1) / 2;
    const at::Tensor gate = both.narrow(1, 0, dim);
    // Not at::std: on the CPU it sums a lone row in another order than one of several.
    const at::Tensor mean = gate.mean(at::IntArrayRef{-1}, /*keepdim=*/true);
    const at::Tensor variance = (gate - mean).square_().mean(at::IntArrayRef{-1}, /*keepdim=*/true);
    const at::Tensor cutoff = mean + variance.sqrt_() * static_cast<double>(deviations);
    const at::Tensor sparse = at::cat({at::relu(gate - cutoff), both.narrow(1, dim, dim)}, 1);
    return down(ops::GatedActivation(sparse, activation, execution).to(x.scalar_type()), execution);
  }
};

// How many standard deviations leave the share `sparsity` below.
float Deviations(double sparsity) {
  const at::Tensor p = at::tensor(static_cast<float>(sparsity));
  return (at::erfinv(p * 2 - 1) * std::sqrt(2.0)).item<float>();
}

std::unique_ptr<FeedForward> LoadFeedForward(WeightLoader& weights, const std::string& prefix, const Gemma3nConfig& c,
                                             int layer) {
  const TransformerConfig& t = c.transformer;
  auto mlp = LoadGatedMlp(weights, prefix,
                          {.hidden = t.hidden, .intermediate = c.intermediates[layer], .activation = t.activation});
  if (c.sparsities[layer] == 0) return mlp;
  auto sparse = std::make_unique<SparseMlp>();
  static_cast<GatedMlp&>(*sparse) = std::move(*mlp);
  sparse->deviations = Deviations(c.sparsities[layer]);
  return sparse;
}

// Alternating updates (Baykal et al., 2023). Streams: [streams, tokens, hidden], float32 whatever the model's type.
class AltUp {
 public:
  AltUp(WeightLoader& weights, const std::string& prefix, const Gemma3nConfig& c)
      : streams_(c.streams), active_(c.active) {
    const int64_t hidden = c.transformer.hidden;
    // hidden^-1 is folded into the norm.
    norm_ = LoadNorm(weights, prefix + "router_norm.weight", hidden, c.transformer.norm_eps);
    norm_.weight = norm_.weight / static_cast<double>(hidden);
    router_ = LoadMatrix(weights, prefix + "modality_router", hidden, streams_);
    prediction_ = LoadMatrix(weights, prefix + "prediction_coefs", streams_, streams_ * streams_);
    correction_ = LoadMatrix(weights, prefix + "correction_coefs", streams_, streams_);
    const at::Tensor scale = weights.Get(prefix + "correct_output_scale", {hidden});
    if (c.scale_corrected) output_scale_ = scale;
  }

  at::Tensor Predict(const at::Tensor& x, Execution& execution) const {
    const at::Tensor mixing = prediction_(Modalities(x.select(0, active_), execution), execution)
                                  .to(at::kFloat)
                                  .view({-1, streams_, streams_});
    // Each stream is the sum of all, weighted by mixing[token, stream, other stream], and itself; not by ATen's matmul,
    // whose last bits depend on the number of tokens.
    at::Tensor predicted = at::empty_like(x);
    for (int64_t stream = 0; stream < streams_; ++stream) {
      at::Tensor sum = predicted.select(0, stream);
      const auto share = [&](int64_t of) { return mixing.select(1, stream).narrow(1, of, 1); };
      at::mul_out(sum, x.select(0, 0), share(0));
      for (int64_t of = 1; of < streams_; ++of) sum.addcmul_(x.select(0, of), share(of));
      sum.add_(x.select(0, stream));
    }
    return predicted;
  }
  at::Tensor Correct(const at::Tensor& predicted, const at::Tensor& computed, Execution& execution) const {
    const at::Tensor shares = (correction_(Modalities(computed, execution), execution).to(at::kFloat) + 1.0)
                                  .t()
                                  .unsqueeze(-1);  // [streams, tokens, 1]
    return ((computed - predicted.select(0, active_)).unsqueeze(0) * shares + predicted).contiguous();
  }
  // The active stream as the layer's own input meets it.
  at::Tensor Active(const at::Tensor& x) const {
    const at::Tensor active = x.select(0, active_);
    return output_scale_.defined() ? active * output_scale_ : active;
  }
  int64_t active() const { return active_; }

 private:
  at::Tensor Modalities(const at::Tensor& x, Execution& execution) const {
    const at::Tensor rounded = x.to(router_.type());
    return at::tanh(router_(norm_(rounded, execution), execution).to(at::kFloat)).to(rounded.scalar_type());
  }

  int64_t streams_, active_;
  Norm norm_;
  Linear router_, prediction_, correction_;
  at::Tensor output_scale_;  // [hidden], or undefined
};

class Gemma3nLayer {
 public:
  Gemma3nLayer(WeightLoader& weights, const std::string& prefix, const Gemma3nConfig& c, int layer)
      : altup_(weights, prefix + "altup.", c), activation_(c.transformer.activation) {
    const TransformerConfig& t = c.transformer;
    attention_ = LoadAttention(weights, prefix + "self_attn.", t, layer);
    mlp_ = LoadFeedForward(weights, prefix + "mlp.", c, layer);
    laurel_left_ = LoadMatrix(weights, prefix + "laurel.linear_left", t.hidden, c.laurel_rank);
    laurel_right_ = LoadMatrix(weights, prefix + "laurel.linear_right", c.laurel_rank, t.hidden);
    laurel_norm_ = LoadNormOf(weights, prefix + "laurel.post_laurel_norm", t);
    input_norm_ = LoadNormOf(weights, prefix + "input_layernorm", t);
    post_attention_norm_ = LoadNormOf(weights, prefix + "post_attention_layernorm", t);
    pre_mlp_norm_ = LoadNormOf(weights, prefix + "pre_feedforward_layernorm", t);
    post_mlp_norm_ = LoadNormOf(weights, prefix + "post_feedforward_layernorm", t);
    input_gate_ = LoadMatrix(weights, prefix + "per_layer_input_gate", t.hidden, c.input_dim);
    input_projection_ = LoadMatrix(weights, prefix + "per_layer_projection", c.input_dim, t.hidden);
    layer_input_norm_ = LoadNormOf(weights, prefix + "post_per_layer_input_norm", t);
  }

  LayerCacheSpec cache_spec(DType dtype) const { return attention_->cache_spec(dtype); }

  // x: [streams, tokens, hidden], float32; layer_input: [tokens, input_dim].
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& layer_input, const StepBatch& batch) const {
    Execution& execution = batch.execution();
    const at::Tensor predicted = altup_.Predict(x, execution);
    const at::Tensor active = predicted.select(0, altup_.active());
    const at::ScalarType type = laurel_left_.type();
    const at::Tensor normed = input_norm_(active.to(type), execution);
    const at::Tensor laurel =
        normed + laurel_norm_(laurel_right_(laurel_left_(normed, execution), execution), execution);
    const at::Tensor attended = active + post_attention_norm_((*attention_)(normed, batch), execution);
    const at::Tensor middle = (attended + laurel) / std::sqrt(2.0);
    const at::Tensor computed =
        middle + post_mlp_norm_((*mlp_)(pre_mlp_norm_(middle.to(type), execution), execution), execution);
    at::Tensor corrected = altup_.Correct(predicted, computed, execution);
    const at::Tensor gated =
        ops::Activate(input_gate_(altup_.Active(corrected).to(type), execution), activation_, execution) * layer_input;
    const at::Tensor added = layer_input_norm_(input_projection_(gated, execution), execution);
    corrected.narrow(0, 1, corrected.size(0) - 1).add_(added);
    return corrected;
  }

 private:
  AltUp altup_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<FeedForward> mlp_;
  Linear laurel_left_, laurel_right_, input_gate_, input_projection_;
  Norm laurel_norm_, input_norm_, post_attention_norm_, pre_mlp_norm_, post_mlp_norm_, layer_input_norm_;
  ops::Activation activation_;
};

class Gemma3nModel : public Model {
 public:
  Gemma3nModel(WeightLoader& weights, const Gemma3nConfig& c)
      : dtype_(weights.options().dtype), num_layers_(c.transformer.num_layers), input_dim_(c.input_dim) {
    const TransformerConfig& t = c.transformer;
    DecoderModel::Parts ends = LoadEmbeddingAndHead(weights, t, "model.norm");
    embedding_ = ends.embedding;
    head_ = std::move(ends.head);
    embedding_scale_ = t.embedding_scale;
    input_embedding_ =
        weights.Get("model.embed_tokens_per_layer.weight", {c.input_vocab_size, num_layers_ * input_dim_});
    input_embedding_scale_ = SqrtEmbeddingScale(input_dim_, dtype_);
    input_projection_ = LoadLinear(weights, t.hidden,
                                   {{.name = "model.per_layer_model_projection",
                                     .out = num_layers_ * input_dim_,
                                     .output_scale = 1 / std::sqrt(static_cast<double>(t.hidden))}});
    input_norm_ = LoadNorm(weights, "model.per_layer_projection_norm.weight", input_dim_, t.norm_eps);
    for (int64_t i = 0; i + 1 < c.streams; ++i) {
      spread_.push_back(LoadMatrix(weights, absl::StrCat("model.altup_projections.", i), t.hidden, t.hidden));
      gather_.push_back(LoadMatrix(weights, absl::StrCat("model.altup_unembed_projections.", i), t.hidden, t.hidden));
    }
    for (int i = 0; i < static_cast<int>(num_layers_); ++i) {
      layers_.emplace_back(weights, absl::StrCat("model.layers.", i, "."), c, i);
    }
  }

  std::vector<LayerCacheSpec> cache_specs() const override {
    std::vector<LayerCacheSpec> specs;
    for (const Gemma3nLayer& layer : layers_) specs.push_back(layer.cache_spec(dtype_));
    return specs;
  }
  int64_t vocab_size() const override { return embedding_.size(0); }
  int64_t hidden_size() const override { return embedding_.size(1); }

  at::Tensor Forward(const StepBatch& batch) const override {
    const at::Tensor embedded = at::index_select(embedding_, 0, batch.token_ids()).mul_(embedding_scale_);
    at::Tensor inputs = LayerInputs(embedded, batch);  // [tokens, layers, input_dim]
    const at::Tensor first_stream = embedded.to(at::kFloat);
    const at::Tensor magnitude = Magnitude(first_stream);
    std::vector<at::Tensor> streams = {first_stream};
    for (const Linear& linear : spread_)
      streams.push_back(WithMagnitude(linear(embedded, batch.execution()).to(at::kFloat), magnitude));
    at::Tensor x = at::stack(streams);
    const StepBatch* computed = &batch;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (static_cast<int>(i) == batch.outputs().first_layer) {
        computed = batch.outputs().batch;
        if (computed == nullptr) return {};
        x = at::index_select(x, 1, batch.outputs().tokens);
        inputs = at::index_select(inputs, 0, batch.outputs().tokens);
      }
      x = layers_[i].Forward(x, inputs.select(1, static_cast<int64_t>(i)), *computed);
    }
    const at::Tensor first = x.select(0, 0);
    const at::Tensor last_magnitude = Magnitude(first);
    at::Tensor sum = first.clone();
    for (size_t i = 0; i < gather_.size(); ++i) {
      const at::Tensor stream = x.select(0, static_cast<int64_t>(i) + 1).to(embedded.scalar_type());
      sum += WithMagnitude(gather_[i](stream, batch.execution()).to(at::kFloat), last_magnitude);
    }
    return head_(sum / static_cast<double>(gather_.size() + 1), *computed);
  }

 private:
  static at::Tensor Magnitude(const at::Tensor& x) { return at::sqrt(x.square().mean(at::IntArrayRef{-1}, true)); }
  static at::Tensor WithMagnitude(const at::Tensor& x, const at::Tensor& magnitude) {
    return x * magnitude / at::sqrt(x.square().mean(at::IntArrayRef{-1}, true).clamp_min(1e-5));
  }
  at::Tensor LayerInputs(const at::Tensor& embedded, const StepBatch& batch) const {
    const at::Tensor known = batch.token_ids() * (batch.token_ids() < input_embedding_.size(0));
    const at::Tensor looked_up = at::index_select(input_embedding_, 0, known).mul_(input_embedding_scale_);
    const at::Tensor projected = input_norm_(input_projection_(embedded, batch.execution()), batch.execution());
    return ((projected + looked_up) * std::sqrt(0.5)).view({-1, num_layers_, input_dim_});
  }

  DType dtype_;
  int64_t num_layers_, input_dim_;
  at::Tensor embedding_, input_embedding_;
  double embedding_scale_ = 1, input_embedding_scale_ = 1;
  Linear input_projection_;
  Norm input_norm_;
  std::vector<Linear> spread_, gather_;  // between the first stream and the others
  std::vector<Gemma3nLayer> layers_;
  Head head_;
};

std::vector<double> ReadSparsities(ConfigReader& config, int64_t num_layers) {
  std::vector<double> fallback(num_layers, 0);
  for (int64_t i = 0; i < 10 && num_layers > 10; ++i) fallback[i] = 0.95;
  std::vector<double> sparsities = config.DoubleListOr("activation_sparsity_pattern", fallback, 0, 0.999999);
  config.Require(static_cast<int64_t>(sparsities.size()) == num_layers, "activation_sparsity_pattern",
                 "does not have num_hidden_layers entries");
  return sparsities;
}

Gemma3nConfig Read(ConfigReader& config, const WeightLoader& weights) {
  Gemma3nConfig c;
  TransformerConfig& t = c.transformer;
  t = ReadTransformer(config, {.head_dim = 256, .tied_head = true});
  t.activation = ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh");
  t.qkv_bias = t.output_bias = config.BoolOr("attention_bias", false);
  t.qk_norm = QkNorm::kHead;
  t.score_scale = 1;
  t.logit_softcap =
      config.IsNull("final_logit_softcapping") ? 0 : config.DoubleOr("final_logit_softcapping", 30, 0, 1e9);
  t.embedding_scale = SqrtEmbeddingScale(t.hidden, weights.options().dtype);
  const int64_t window = config.IntOr("sliding_window", 512, 1, kMaxWindow);
  t.windows = ReadWindows(config, t.num_layers, window, PeriodicLayerTypes(t.num_layers, 5, "sliding_attention"));
  ReadRotaryByType(config, weights, {.default_theta = 1e6},
                   {.default_theta = 1e4, .theta_key = "rope_local_base_freq", .use_rope_scaling = false}, &t);
  c.intermediates = config.IntOrIntList("intermediate_size", 1, kMaxDimension);
  if (c.intermediates.size() == 1) c.intermediates.resize(t.num_layers, c.intermediates[0]);
  config.Require(static_cast<int64_t>(c.intermediates.size()) == t.num_layers, "intermediate_size",
                 "has neither one nor num_hidden_layers entries");
  c.sparsities = ReadSparsities(config, t.num_layers);
  c.streams = config.IntOr("altup_num_inputs", 4, 2, 64);
  c.active = config.IntOr("altup_active_idx", 0, 0, c.streams - 1);
  c.scale_corrected = config.BoolOr("altup_correct_scale", true);
  c.laurel_rank = config.IntOr("laurel_rank", 64, 1, kMaxDimension);
  c.input_dim = config.IntOr("hidden_size_per_layer_input", 256, 1, kMaxDimension);
  c.input_vocab_size = config.IntOr("vocab_size_per_layer_input", 262144, 1, kMaxVocabulary);
  c.num_borrowing_layers = config.IntOr("num_kv_shared_layers", 15, 0, t.num_layers - 1);
  return c;
}

// The last layer before `first_borrowing` with the same kind of attention, or -1.
int LenderOf(const TransformerConfig& t, int layer, int64_t first_borrowing) {
  for (int64_t i = first_borrowing - 1; i >= 0; --i) {
    if ((t.windows[i] > 0) == (t.windows[layer] > 0)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

std::unique_ptr<Model> BuildGemma3n(ConfigReader& config, WeightLoader& weights) {
  Gemma3nConfig c = Read(config, weights);
  TransformerConfig& t = c.transformer;
  const int64_t first_borrowing = t.num_layers - c.num_borrowing_layers;
  for (int i = static_cast<int>(first_borrowing); i < t.num_layers; ++i) {
    config.Require(LenderOf(t, i, first_borrowing) >= 0, "num_kv_shared_layers",
                   "leaves a layer without one of its type to borrow keys and values from");
  }
  if (!config.status().ok()) return nullptr;
  t.kv_source_layers.assign(t.num_layers, -1);
  for (int i = static_cast<int>(first_borrowing); i < t.num_layers; ++i)
    t.kv_source_layers[i] = LenderOf(t, i, first_borrowing);
  t.transform_attention_weights = [&](int, LoadedAttention* parts) {
    parts->weights.v_norm = UnitNorm(weights, t.head_dim, t.norm_eps);
  };
  return std::make_unique<Gemma3nModel>(weights, c);
}

}  // namespace berth
