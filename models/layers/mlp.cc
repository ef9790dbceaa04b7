#include "models/layers/mlp.h"

namespace berth {

std::unique_ptr<GatedMlp> LoadGatedMlp(WeightLoader& weights, const std::string& prefix, const MlpConfig& c,
                                       const MlpNames& names) {
  auto mlp = std::make_unique<GatedMlp>();
  mlp->gate_up = LoadLinear(
      weights, c.hidden,
      {{.name = prefix + names.gate, .out = c.intermediate, .has_bias = c.bias, .output_scale = c.gate_scale},
       {.name = prefix + names.up, .out = c.intermediate, .has_bias = c.bias}});
  mlp->down =
      LoadLinear(weights, c.intermediate,
                 {{.name = prefix + names.down, .out = c.hidden, .has_bias = c.bias, .output_scale = c.output_scale}});
  mlp->activation = c.activation;
  return mlp;
}

std::unique_ptr<Mlp> LoadMlp(WeightLoader& weights, const std::string& prefix, const MlpConfig& c,
                             const MlpNames& names) {
  auto mlp = std::make_unique<Mlp>();
  mlp->up = LoadLinear(weights, c.hidden, {{.name = prefix + names.up, .out = c.intermediate, .has_bias = c.bias}});
  mlp->down =
      LoadLinear(weights, c.intermediate,
                 {{.name = prefix + names.down, .out = c.hidden, .has_bias = c.bias, .output_scale = c.output_scale}});
  mlp->activation = c.activation;
  return mlp;
}

}  // namespace berth
