#include "models/layers/residual_stream.h"

#include <ATen/ops/index_select.h>

#include "models/ops/elementwise/elementwise.h"

namespace berth {

void ResidualStream::Add(at::Tensor x, Execution& execution, double scale) {
  Sum(execution);
  pending_ = std::move(x);
  scale_ = scale;
}

void ResidualStream::Select(const at::Tensor& tokens) {
  sum_ = at::index_select(sum_, 0, tokens);
  // Still added by the next norm: so a token has equal bits in steps that select and in those that do not.
  if (pending_.defined()) pending_ = at::index_select(pending_, 0, tokens);
}

const at::Tensor& ResidualStream::Sum(Execution& execution) {
  if (pending_.defined()) sum_ = ops::AddResidual(sum_, pending_, execution, scale_);
  pending_.reset();
  return sum_;
}

at::Tensor ResidualStream::Normed(const Norm& norm, Execution& execution) {
  if (!norm.defined()) return Sum(execution).to(type_);
  if (!pending_.defined()) return norm(sum_, type_, execution);
  ops::SumAndNorm both = norm.OfSum({.stream = sum_, .x = pending_, .scale = scale_}, type_, execution);
  sum_ = std::move(both.sum);
  pending_.reset();
  return std::move(both.normed);
}

}  // namespace berth
