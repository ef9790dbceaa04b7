// A dense layer, and its loading from a checkpoint's matrices. Loading folds constants that a model multiplies with
// before or after a product into the weights, in float32. Thread-compatible.
#ifndef BERTH_MODELS_LAYERS_LINEAR_H_
#define BERTH_MODELS_LAYERS_LINEAR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cache/dtype.h"
#include "models/checkpoint/weight_loader.h"
#include "models/ops/elementwise/elementwise_args.h"
#include "models/ops/matmul/matmul.h"

namespace berth {

// A layer's matrix while it is being loaded.
struct LinearWeights {
  std::string name;                 // of the matrix among the packed ones
  at::Tensor weight;                // [out, in]
  at::Tensor bias;                  // [out] or undefined
  DType storage = DType::kFloat32;  // as PackedMatrix takes it
  PackedWeights* packed = nullptr;  // where the matrix is packed
};

// W x + b. Copies share the weights.
class Linear {
 public:
  Linear() = default;
  // Packs the matrix, which is not needed afterwards. Implicit, so that a member can be assigned what LoadLinear
  // returns.
  Linear(const LinearWeights& weights);  // NOLINT(google-explicit-constructor)

  // Returns this layer with a low-rank addition to the matrix, up * down. down: [rank, in], up: [out, rank].
  Linear WithAdapter(const LinearWeights& down, const LinearWeights& up) const;

  // x: [tokens, in] -> [tokens, out].
  at::Tensor operator()(const at::Tensor& x, Execution& execution) const;
  // Returns activation(left half of the outputs) * right half: [tokens, out / 2].
  at::Tensor Gated(const at::Tensor& x, ops::Activation activation, Execution& execution) const;
  // Returns the layer's numbers as a head gives them: the CPU's kernels write them in float32, and others in the
  // layer's type.
  at::Tensor Logits(const at::Tensor& x, Execution& execution) const;

  bool defined() const { return weight_.defined(); }
  int64_t outputs() const { return weight_.outputs(); }
  at::ScalarType type() const { return weight_.type(); }  // of inputs and outputs

 private:
  ops::PackedMatrix weight_;
  at::Tensor bias_;                              // as ops::MatMul takes it, or undefined
  ops::PackedMatrix adapter_down_, adapter_up_;  // both or neither
};

// One matrix of the checkpoint: `name`.weight [out, in] and, where has_bias, `name`.bias [out].
// Computes output_scale * (W (input_scale * x) + b).
struct LinearPart {
  std::string name;
  int64_t out = 0;
  bool has_bias = false;
  double input_scale = 1;
  double output_scale = 1;
};

// Loads the parts side by side as one product, whose outputs are all of theirs. Errors stick to the loader.
LinearWeights LoadLinear(WeightLoader& weights, int64_t in, const std::vector<LinearPart>& parts);

// Makes rows [first, first + count) of `linear` compute output_scale * (W (input_scale * x) + b).
void ScaleLinear(LinearWeights* linear, int64_t first, int64_t count, double input_scale, double output_scale);

// A matrix that is made of the tensors `names`, in the storage of the loader's matrices.
LinearWeights MatrixOf(const WeightLoader& weights, const std::vector<std::string>& names, at::Tensor matrix);

// Packs only the matrix, without the bias.
ops::PackedMatrix Pack(const LinearWeights& weights);

// The matrices of a stack [n, out, in], which is made of the tensors `names`.
std::vector<ops::PackedMatrix> PackStack(const WeightLoader& weights, const std::vector<std::string>& names,
                                         const at::Tensor& stack);

// How an output head is kept beside matrices of `matrices`: its errors reach every probability, so no coarser than
// int8.
DType HeadStorage(DType matrices);

// A bias as ops::MatMul and ops::GroupedMatMul take it; undefined stays so.
at::Tensor MatMulBias(const at::Tensor& bias);

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_LINEAR_H_
