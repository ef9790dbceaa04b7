#include "models/sampling/state_pooler.h"

namespace berth {

void StatePooler::Begin(const StepPlan& plan, StepResult* result) {
  sums_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    std::vector<double>& sum = result->rows[i].pooled;
    sum.assign(row.pooled.begin(), row.pooled.end());
    sums_.insert(sums_.end(), row.num_pooled, &sum);
  }
}

void StatePooler::Take(const at::Tensor& states, int64_t first) {
  const at::Tensor dense = states.cpu().to(at::kFloat).contiguous();
  const float* state = dense.const_data_ptr<float>();
  const size_t size = static_cast<size_t>(dense.size(1));
  for (int64_t i = 0; i < dense.size(0); ++i, state += size) {
    std::vector<double>& sum = *sums_[first + i];
    if (sum.empty()) sum.resize(size);
    for (size_t d = 0; d < size; ++d) sum[d] += state[d];
  }
}

}  // namespace berth
