// The choice of a token's experts by the scores of their router, and the sum of what they give. See
// models/ops/README.md for the rules of operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_EXPERTS_EXPERTS_H_
#define BERTH_MODELS_OPS_EXPERTS_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include "models/ops/experts/experts_args.h"
#include "models/step/execution.h"

namespace berth::ops {

struct ExpertChoice {
  at::Tensor experts;  // [tokens, top_k], int64
  at::Tensor weights;  // [tokens, top_k], float32
};

// logits: [tokens, num_experts], float32, contiguous. choice_bias: [num_experts], float32, or undefined.
ExpertChoice ChooseExperts(const at::Tensor& logits, const at::Tensor& choice_bias, const RouterConfig& router,
                           Execution& execution);

// parts: [tokens * top_k, columns], contiguous, token by token. weights: [tokens, top_k], float32, or undefined, which
// means 1. Returns [tokens, columns], summed in float32 in the order of the choice. So a token's sum does not depend on
// the batch.
at::Tensor SumExperts(const at::Tensor& parts, const at::Tensor& weights, int64_t top_k, Execution& execution);

}  // namespace berth::ops

namespace berth::reference {

// These have the contracts above, in ATen operations, on any device. Any of equal scores may be chosen.
ops::ExpertChoice ChooseExperts(const at::Tensor& logits, const at::Tensor& choice_bias,
                                const ops::RouterConfig& router);
at::Tensor SumExperts(const at::Tensor& parts, const at::Tensor& weights, int64_t top_k);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_EXPERTS_EXPERTS_H_
