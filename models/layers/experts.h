// A mixture of experts. A router chooses a few feed-forwards for each token. The pairs of token and expert are sorted
// by expert, so that each chosen expert's product runs once over all its tokens. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_EXPERTS_H_
#define BERTH_MODELS_LAYERS_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint/weight_loader.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/ops/elementwise/elementwise.h"
#include "models/ops/experts/experts.h"
#include "models/ops/matmul/matmul.h"

namespace berth {

using ops::RouterConfig;
using ops::Routing;

class Router {
 public:
  // Weights are float32, so that the choice of experts does not depend on a rounding.
  struct Weights {
    Linear scores;           // [num_experts, hidden]
    at::Tensor choice_bias;  // [num_experts] added to scores for the choice alone, or undefined
  };

  Router(const RouterConfig& config, Weights weights) : config_(config), weights_(std::move(weights)) {}
  // Reads `name`.weight and, where has_bias, `name`.bias.
  static Router Load(WeightLoader& loader, const std::string& name, int64_t hidden, const RouterConfig& config,
                     bool has_bias = false);
  void set_choice_bias(at::Tensor bias) { weights_.choice_bias = std::move(bias); }

  // x: [tokens, hidden].
  ops::ExpertChoice operator()(const at::Tensor& x, Execution& execution) const;
  int64_t num_experts() const { return config_.num_experts; }

 private:
  RouterConfig config_;
  Weights weights_;
};

class Experts : public FeedForward {
 public:
  struct Weights {
    std::vector<ops::PackedMatrix> up;  // by expert; gated: [2 * intermediate, hidden], gates first; else half as many
    std::vector<ops::PackedMatrix> down;  // [hidden, intermediate]
    at::Tensor up_bias;                   // MatMulBias of [experts, up's outputs], or undefined
    at::Tensor down_bias;                 // the same of [experts, hidden]
  };
  struct Options {
    ops::Activation activation = ops::Activation::kSilu;
    ops::SwigluConstants swiglu = {};  // of kClampedSwiglu
    bool gated = true;
    bool scale_input = false;  // Llama 4: the weight multiplies the expert's input, not its output
  };

  Experts(Router router, Weights weights, const Options& options)
      : router_(std::move(router)),
        weights_(std::move(weights)),
        up_addresses_(ops::AddressesOf(weights_.up)),
        down_addresses_(ops::AddressesOf(weights_.down)),
        options_(options) {}

  // Adds a feed-forward for every token, times sigmoid(gate x) if there is a gate.
  void set_shared(std::unique_ptr<FeedForward> shared, Linear gate = {});

  // Puts the experts between two products, in a narrower stream (nemotron_h), but not the router and the shared
  // feed-forward.
  void set_latent(Linear into, Linear out_of);

  at::Tensor operator()(const at::Tensor& x, Execution& execution) const override;

 private:
  // x: what the experts see of the router's tokens.
  at::Tensor Routed(const at::Tensor& x, const ops::ExpertChoice& choice, Execution& execution) const;
  // Returns the experts' output for each pair (token, chosen expert), [pairs, hidden], token by token. The host sorts
  // the pairs by expert.
  at::Tensor SortedPairs(const at::Tensor& x, const ops::ExpertChoice& choice, Execution& execution) const;
  // Like SortedPairs, but on a GPU and without the host. Returns an undefined tensor if there are no kernels.
  at::Tensor PairsOnDevice(const at::Tensor& x, const ops::ExpertChoice& choice, Execution& execution) const;
  at::Tensor Activated(const at::Tensor& up, Execution& execution) const;

  Router router_;
  Weights weights_;
  at::Tensor up_addresses_, down_addresses_;  // of ops::ExpertMatMul
  Options options_;
  std::unique_ptr<FeedForward> shared_;
  Linear shared_gate_;
  Linear latent_in_, latent_out_;
};

// Names of the matrices of one expert, under `prefix`<expert>.
struct ExpertNames {
  const char* gate = "gate_proj";  // nullptr: not gated
  const char* up = "up_proj";
  const char* down = "down_proj";
};

// Reads one matrix per expert, or stacks of them, `prefix`gate_up_proj and down_proj, if the checkpoint has those.
// Errors stick to the loader.
Experts::Weights LoadExperts(WeightLoader& weights, const std::string& prefix, int64_t num_experts, int64_t hidden,
                             int64_t intermediate, const ExpertNames& names = {});

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_EXPERTS_H_
