// Functions of single elements whose bits depend on the element and its column alone. ATen's do not promise that: the
// last elements of a tensor take other code than the rest, so that a row's bits change with the number of rows.
// Under the rules of ops.h; engine thread only.
#ifndef BERTH_MODELS_KERNELS_ELEMENTWISE_OPS_H_
#define BERTH_MODELS_KERNELS_ELEMENTWISE_OPS_H_

#include <ATen/core/Tensor.h>

namespace berth::ops {

// x: [tokens, columns] -> the same, in x's type.
at::Tensor Sigmoid(const at::Tensor& x);
at::Tensor Silu(const at::Tensor& x);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor GeluTanh(const at::Tensor& x);

}  // namespace berth::ops

#endif  // BERTH_MODELS_KERNELS_ELEMENTWISE_OPS_H_
