#include "models/ops/experts/experts.h"

#include <ATen/ops/empty.h>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"

namespace berth::ops {

ExpertChoice ChooseExperts(const at::Tensor& logits, const at::Tensor& choice_bias, const RouterConfig& router,
                           Execution& execution) {
  TORCH_CHECK(logits.is_contiguous() && logits.size(1) == router.num_experts && router.top_k <= router.num_experts,
              "scores of [", logits.sizes(), "] for ", router.top_k, " of ", router.num_experts, " experts");
  const Backend backend = BackendOf(logits, execution);
  if (backend == Backend::kReference) return reference::ChooseExperts(logits, choice_bias, router);
  const int64_t tokens = logits.size(0);
  ExpertChoice choice = {.experts = at::empty({tokens, router.top_k}, logits.options().dtype(at::kLong)),
                         .weights = at::empty({tokens, router.top_k}, logits.options())};
  const ChooseExpertsArgs args = {.router = router,
                                  .logits = logits.const_data_ptr<float>(),
                                  .choice_bias = choice_bias.defined() ? choice_bias.const_data_ptr<float>() : nullptr,
                                  .experts = choice.experts.data_ptr<int64_t>(),
                                  .weights = choice.weights.data_ptr<float>()};
  if (backend == Backend::kCuda) {
    const bool launched = IsLaunched(
        RunOnCuda(&cuda::Kernels::choose_experts, DType::kFloat32, args, LaunchParamsFor(logits), execution));
    return launched ? choice : reference::ChooseExperts(logits, choice_bias, router);
  }
  RunOnCpu(&cpu::Kernels::choose_experts, DType::kFloat32, args, tokens, router.num_experts * (router.top_k + 20),
           execution);
  return choice;
}

at::Tensor SumExperts(const at::Tensor& parts, const at::Tensor& weights, int64_t top_k, Execution& execution) {
  TORCH_CHECK(parts.is_contiguous() && parts.size(0) % top_k == 0, "parts of [", parts.sizes(), "] for ", top_k,
              " experts a token");
  const Backend backend = BackendOf(parts, execution);
  if (backend == Backend::kReference) return reference::SumExperts(parts, weights, top_k);
  const int64_t tokens = parts.size(0) / top_k;
  at::Tensor out = at::empty({tokens, parts.size(1)}, parts.options());
  const SumExpertsArgs args = {.parts = parts.const_data_ptr(),
                               .weights = weights.defined() ? weights.const_data_ptr<float>() : nullptr,
                               .out = out.data_ptr(),
                               .top_k = top_k,
                               .columns = parts.size(1)};
  if (backend == Backend::kCuda) {
    CheckLaunched(RunOnCuda(&cuda::Kernels::sum_experts, TypeOf(parts), args, LaunchParamsFor(out), execution));
  } else {
    RunOnCpu(&cpu::Kernels::sum_experts, TypeOf(parts), args, tokens, args.top_k * args.columns * 2, execution);
  }
  return out;
}

}  // namespace berth::ops
