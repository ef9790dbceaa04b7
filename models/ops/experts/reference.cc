#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "models/ops/experts/experts.h"

namespace berth::reference {
namespace {

// The scores with all experts outside the best groups excluded.
at::Tensor MaskGroups(const at::Tensor& scores, const ops::RouterConfig& router) {
  const at::Tensor grouped = scores.view({scores.size(0), router.num_groups, -1});
  const at::Tensor group_scores = std::get<0>(grouped.topk(2, -1)).sum(-1);
  const at::Tensor best = std::get<1>(group_scores.topk(router.top_groups, -1));
  const at::Tensor kept = at::zeros_like(group_scores).scatter(1, best, 1.0).unsqueeze(-1).expand_as(grouped);
  return grouped.masked_fill(kept == 0, -std::numeric_limits<double>::infinity()).reshape(scores.sizes());
}

}  // namespace

ops::ExpertChoice ChooseExperts(const at::Tensor& logits, const at::Tensor& choice_bias,
                                const ops::RouterConfig& router) {
  using ops::Routing;
  at::Tensor scores = logits;
  if (router.routing == Routing::kSoftmax) scores = at::softmax(scores, -1);
  if (router.routing == Routing::kSigmoid) scores = at::sigmoid(scores);
  at::Tensor ranked = choice_bias.defined() ? scores + choice_bias : scores;
  if (router.num_groups > 1) ranked = MaskGroups(ranked, router);
  ops::ExpertChoice choice;
  choice.experts = std::get<1>(ranked.topk(router.top_k, -1));
  choice.weights = scores.gather(1, choice.experts);
  if (router.routing == Routing::kSoftmaxOfChosen) choice.weights = at::softmax(choice.weights, -1);
  if (router.routing == Routing::kSigmoidOfChosen) choice.weights = at::sigmoid(choice.weights);
  if (router.renormalize) {
    choice.weights = choice.weights / (choice.weights.sum({-1}, /*keepdim=*/true) + router.sum_floor);
  }
  if (router.scale != 1) choice.weights = choice.weights * router.scale;
  return choice;
}

at::Tensor SumExperts(const at::Tensor& parts, const at::Tensor& weights, int64_t top_k) {
  at::Tensor by_token = parts.view({-1, top_k, parts.size(1)}).to(at::kFloat);
  if (weights.defined()) by_token = by_token * weights.unsqueeze(-1);
  return by_token.sum({1}).to(parts.scalar_type());
}

}  // namespace berth::reference
