// Dense feed-forwards. Thread-compatible.
#ifndef BERTH_MODELS_LAYERS_MLP_H_
#define BERTH_MODELS_LAYERS_MLP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/ops/elementwise/elementwise.h"

namespace berth {

// down(activation(gate(x)) * up(x)), gate and up as one product.
struct GatedMlp : public FeedForward {
  Linear gate_up;  // 2 * intermediate outputs: gate, up
  Linear down;
  ops::Activation activation = ops::Activation::kSilu;

  at::Tensor operator()(const at::Tensor& x, Execution& execution) const override {
    return down(gate_up.Gated(x, activation, execution), execution);
  }
};

// down(activation(up(x))).
struct Mlp : public FeedForward {
  Linear up, down;
  ops::Activation activation = ops::Activation::kRelu;

  at::Tensor operator()(const at::Tensor& x, Execution& execution) const override {
    return down(ops::Activate(up(x, execution), activation, execution), execution);
  }
};

struct MlpConfig {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  bool bias = false;
  ops::Activation activation = ops::Activation::kSilu;
  double gate_scale = 1;    // of the gate before its activation
  double output_scale = 1;  // of the whole
};

// Names of the three matrices under a prefix.
struct MlpNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

// Errors stick to the loader.
std::unique_ptr<GatedMlp> LoadGatedMlp(WeightLoader& weights, const std::string& prefix, const MlpConfig& config,
                                       const MlpNames& names = {});
// Loads an MLP without a gate, and ignores names.gate. Errors stick to the loader.
std::unique_ptr<Mlp> LoadMlp(WeightLoader& weights, const std::string& prefix, const MlpConfig& config,
                             const MlpNames& names = {});

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_MLP_H_
