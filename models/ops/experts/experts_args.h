// The arguments of the kernels that choose experts and add up what they give.
#ifndef BERTH_MODELS_OPS_EXPERTS_EXPERTS_ARGS_H_
#define BERTH_MODELS_OPS_EXPERTS_EXPERTS_ARGS_H_

#include <stdint.h>

namespace berth::ops {

// How the scores of a router become choice and weights.
enum class Routing {
  kSoftmax,          // softmax over all experts, the best chosen
  kSoftmaxOfChosen,  // the best logits chosen, softmax over those
  kSigmoid,          // sigmoid of each, the best chosen
  kSigmoidOfChosen,  // the best logits chosen, sigmoid of each (not the same where sigmoids round to one)
};

struct RouterConfig {
  Routing routing = Routing::kSoftmax;
  int64_t num_experts = 0;
  int64_t top_k = 0;
  bool renormalize = false;  // the chosen weights are divided by their sum...
  double sum_floor = 0;      // ...plus this
  double scale = 1;          // of the weights, at last
  // DeepSeek-V3 chooses within the best groups of experts. A group's score is the sum of its two best. 1: no groups.
  int64_t num_groups = 1;
  int64_t top_groups = 1;
};

// The best experts of each token, the best first; of equal ones the first. A NaN is the largest score. Items: tokens.
struct ChooseExpertsArgs {
  RouterConfig router;
  const float* logits;       // [tokens, num_experts]
  const float* choice_bias;  // [num_experts], added to scores for the choice alone; or null
  int64_t* experts;          // [tokens, top_k]
  float* weights;            // [tokens, top_k]
};

// out = the sum of a token's parts, each times its weight, in their order. Items: tokens.
struct SumExpertsArgs {
  const void* parts;     // [tokens, top_k, columns]
  const float* weights;  // [tokens, top_k], or null: 1
  void* out;             // [tokens, columns]
  int64_t top_k, columns;
};

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_EXPERTS_EXPERTS_ARGS_H_
