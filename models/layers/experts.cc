#include "models/layers/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

// Each token goes to its top_k experts. That makes tokens * top_k pairs of a token and an expert. They are grouped by
// expert, so that each expert's matrix is read once for all of its tokens. The grouping is a counting sort, on the host
// (SortedPairs) or by a kernel that the host does not wait for (PairsOnDevice):
//
//   chosen    token 0: e2 e0 | token 1: e0 e1      top_k = 2
//   order     1 2 | 3 | 0                          pairs by expert: e0, e1, e2
//
// The results return to the order of the choice before they are summed (Routed).
namespace berth {
namespace {

// The pairs (token, chosen expert) in the order of their experts.
struct Pairs {
  at::Tensor order;           // [pairs]: index into the flattened choice
  at::Tensor tokens;          // [pairs]
  at::Tensor places;          // [pairs]: where flattened choice i stands in `order`
  std::vector<int64_t> ends;  // by expert
};

Pairs SortByExpert(const at::Tensor& experts, int64_t num_experts) {
  const at::Tensor chosen = experts.cpu().contiguous();
  const int64_t* expert = chosen.const_data_ptr<int64_t>();
  const int64_t count = chosen.numel();
  const int64_t top_k = chosen.size(1);
  Pairs pairs;
  pairs.ends.assign(num_experts, 0);
  for (int64_t i = 0; i < count; ++i) ++pairs.ends[expert[i]];
  int64_t sum = 0;
  for (int64_t& end : pairs.ends) end = std::exchange(sum, sum + end);  // begins, for now
  std::vector<int64_t> order(count), tokens(count), places(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = pairs.ends[expert[i]]++;
    order[place] = i;
    tokens[place] = i / top_k;
    places[i] = place;
  }
  pairs.order = at::tensor(order).to(experts.device());
  pairs.tokens = at::tensor(tokens).to(experts.device());
  pairs.places = at::tensor(places).to(experts.device());
  return pairs;
}

}  // namespace

Router Router::Load(WeightLoader& loader, const std::string& name, int64_t hidden, const RouterConfig& config,
                    bool has_bias) {
  TORCH_CHECK(config.top_k > 0 && config.top_k <= config.num_experts, config.top_k, " of ", config.num_experts,
              " experts");
  const std::string matrix = name + ".weight";
  LinearWeights scores = MatrixOf(loader, {matrix}, loader.GetFloat32(matrix, {config.num_experts, hidden}));
  scores.storage = DType::kFloat32;
  if (has_bias) scores.bias = loader.GetFloat32(name + ".bias", {config.num_experts});
  return Router(config, {.scores = scores});
}

ops::ExpertChoice Router::operator()(const at::Tensor& x, Execution& execution) const {
  return ops::ChooseExperts(weights_.scores(x.to(at::kFloat), execution), weights_.choice_bias, config_, execution);
}

void Experts::set_shared(std::unique_ptr<FeedForward> shared, Linear gate) {
  shared_ = std::move(shared);
  shared_gate_ = std::move(gate);
}

void Experts::set_latent(Linear into, Linear out_of) {
  latent_in_ = std::move(into);
  latent_out_ = std::move(out_of);
}

at::Tensor Experts::Activated(const at::Tensor& up, Execution& execution) const {
  return options_.gated ? ops::GatedActivation(up, options_.activation, execution, options_.swiglu)
                        : ops::Activate(up, options_.activation, execution);
}

at::Tensor Experts::SortedPairs(const at::Tensor& x, const ops::ExpertChoice& choice, Execution& execution) const {
  const Pairs pairs = SortByExpert(choice.experts, router_.num_experts());
  at::Tensor rows = at::index_select(x, 0, pairs.tokens);
  if (options_.scale_input) {
    const at::Tensor weights = choice.weights.flatten().index_select(0, pairs.order);
    rows.mul_(weights.to(rows.scalar_type()).unsqueeze(1));
  }
  const at::Tensor up = ops::GroupedMatMul(rows, weights_.up, weights_.up_bias, pairs.ends, execution);
  const at::Tensor out =
      ops::GroupedMatMul(Activated(up, execution), weights_.down, weights_.down_bias, pairs.ends, execution);
  return at::index_select(out, 0, pairs.places);
}

at::Tensor Experts::PairsOnDevice(const at::Tensor& x, const ops::ExpertChoice& choice, Execution& execution) const {
  at::Tensor rows = x;
  ops::ExpertPairs pairs = {.chosen = choice.experts.flatten(), .pairs_per_row = choice.experts.size(1), .groups = {}};
  if (options_.scale_input) {
    rows = (x.unsqueeze(1) * choice.weights.to(x.scalar_type()).unsqueeze(-1)).flatten(0, 1);
    pairs.pairs_per_row = 1;
  }
  ops::GroupPairs(router_.num_experts(), &pairs, execution);
  const at::Tensor up = ops::ExpertMatMul(rows, weights_.up, up_addresses_, weights_.up_bias, pairs, execution);
  if (!up.defined()) return {};
  pairs.pairs_per_row = 1;
  return ops::ExpertMatMul(Activated(up, execution), weights_.down, down_addresses_, weights_.down_bias, pairs,
                           execution);
}

at::Tensor Experts::Routed(const at::Tensor& x, const ops::ExpertChoice& choice, Execution& execution) const {
  at::Tensor out;
  if (up_addresses_.defined()) out = PairsOnDevice(x, choice, execution);
  if (!out.defined()) out = SortedPairs(x, choice, execution);
  return ops::SumExperts(out, options_.scale_input ? at::Tensor() : choice.weights, choice.experts.size(1), execution);
}

at::Tensor Experts::operator()(const at::Tensor& x, Execution& execution) const {
  const ops::ExpertChoice choice = router_(x, execution);
  at::Tensor out = latent_in_.defined() ? latent_out_(Routed(latent_in_(x, execution), choice, execution), execution)
                                        : Routed(x, choice, execution);
  if (shared_ == nullptr) return out;
  at::Tensor shared = (*shared_)(x, execution);
  if (shared_gate_.defined())
    shared = shared * ops::Activate(shared_gate_(x, execution), ops::Activation::kSigmoid, execution);
  return out + shared;
}

Experts::Weights LoadExperts(WeightLoader& weights, const std::string& prefix, int64_t num_experts, int64_t hidden,
                             int64_t intermediate, const ExpertNames& names) {
  const auto stack = [&](const std::string& name, int64_t out, int64_t in) {
    return PackStack(weights, {name}, weights.GetMatrix(name, {num_experts, out, in}));
  };
  if (weights.Has(prefix + "gate_up_proj")) {
    return {.up = stack(prefix + "gate_up_proj", 2 * intermediate, hidden),
            .down = stack(prefix + "down_proj", hidden, intermediate)};
  }
  Experts::Weights experts;
  for (int64_t e = 0; e < num_experts; ++e) {
    const auto part = [&](const char* matrix, int64_t out) -> LinearPart {
      return {.name = absl::StrCat(prefix, e, ".", matrix), .out = out};
    };
    std::vector<LinearPart> up = {part(names.up, intermediate)};
    if (names.gate != nullptr) up.insert(up.begin(), part(names.gate, intermediate));
    experts.up.push_back(Pack(LoadLinear(weights, hidden, up)));
    experts.down.push_back(Pack(LoadLinear(weights, intermediate, {part(names.down, hidden)})));
  }
  return experts;
}

}  // namespace berth
