// The stream that runs through a model's layers: a sum to which every part of a layer adds its output. Engine thread
// only.
#ifndef BERTH_MODELS_LAYERS_RESIDUAL_STREAM_H_
#define BERTH_MODELS_LAYERS_RESIDUAL_STREAM_H_

#include <ATen/core/Tensor.h>

#include <utility>

#include "models/layers/norm.h"

namespace berth {

// The newest output is not added until the sum is read: most readers want its norm, and one kernel computes both.
class ResidualStream {
 public:
  // x: [tokens, hidden], of the model's type `type`, or float32. The sum keeps x's type.
  ResidualStream(at::Tensor x, at::ScalarType type) : sum_(std::move(x)), type_(type) {}

  // Adds scale * x. x: [tokens, hidden], of the model's type. It must not change until the sum is read.
  void Add(at::Tensor x, Execution& execution, double scale = 1);
  // Keeps the tokens at these indices alone.
  void Select(const at::Tensor& tokens);
  // Replaces the stream by its norm.
  void Replace(const Norm& norm, Execution& execution) { sum_ = Normed(norm, execution); }

  const at::Tensor& Sum(Execution& execution);
  // The sum rounded to the model's type, normed if there is a norm.
  at::Tensor Normed(const Norm& norm, Execution& execution);

 private:
  at::Tensor sum_;
  at::Tensor pending_;  // undefined: nothing
  double scale_ = 1;    // of what is pending
  at::ScalarType type_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_RESIDUAL_STREAM_H_
