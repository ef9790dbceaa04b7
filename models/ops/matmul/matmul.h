// Dense products x W^T with matrices that are packed once at load time. On the CPU the kernels of matmul_args.h compute
// them, whose contract holds here too: a row's bits do not depend on its neighbours. On other devices the matrix stays
// plain for ATen, or has 8 bits for CUDA's kernels. See models/ops/README.md for the rules of operations. Engine thread
// only; packing belongs to loading.
#ifndef BERTH_MODELS_OPS_MATMUL_MATMUL_H_
#define BERTH_MODELS_OPS_MATMUL_MATMUL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cache/dtype.h"
#include "models/kernels/cpu/panels.h"
#include "models/ops/elementwise/elementwise_args.h"
#include "models/ops/matmul/packed_weights.h"
#include "models/step/execution.h"

namespace berth::ops {

// A matrix [outputs, inputs]. Copies share its memory. On the CPU it is stored as asked for; float32 weights are stored
// as bfloat16 if all of them are numbers of bfloat16, which loses nothing. On other devices it is exact or kInt8.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `storage` is kInt8 or kInt4 (matmul_args.h); any other type loses nothing.
  //
  // weight: [outputs, inputs], float32 or bfloat16, which inputs and outputs of the products are then as well. It is
  // read once on the CPU, and kept on other devices. If `packed` has a file, the matrix called `name` is taken from it,
  // and `weight` need have no values (at::kMeta). If `packed` measures, the matrix is only counted and cannot be used;
  // values are then needed of float32 weights that are stored without loss. Throws c10::Error as Take and Add do.
  PackedMatrix(const std::string& name, const at::Tensor& weight, DType storage, PackedWeights* packed);

  bool defined() const { return outputs() > 0; }
  int64_t inputs() const { return packed_.inputs; }
  int64_t outputs() const { return packed_.outputs; }
  at::ScalarType type() const { return packed_.type; }
  PackedWeight packed() const;                                 // REQUIRES: on the CPU
  const at::Tensor& plain() const { return plain_; }           // undefined on the CPU; of kInt8 in 8 bits,
  const at::Tensor& scales() const { return packed_.scales; }  // which are times these, [outputs]
  int64_t size_bytes() const;

 private:
  void Pack(const at::Tensor& weight, DType storage, Execution& execution);
  void KeepInt8(const at::Tensor& weight);

  PackedPanels packed_;  // of another device the shape and type only
  at::Tensor plain_;
};

// x: [tokens, inputs] -> [tokens, outputs]. bias: [outputs], or undefined; on the CPU in float32. in_float32: the same
// numbers, rounded to x's type, as float32.
at::Tensor MatMul(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias, Execution& execution,
                  bool in_float32 = false);

// GatedActivation (elementwise.h) of MatMul: [tokens, outputs / 2]. CUDA computes few rows with one kernel.
at::Tensor GatedMatMul(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias, Activation activation,
                       Execution& execution);

// The i-th weight times the i-th of x's blocks of columns, side by side. The blocks are as wide as the weights' inputs,
// the same for all; x: [tokens, blocks * inputs].
at::Tensor BlockDiagonalMatMul(const at::Tensor& x, const std::vector<PackedMatrix>& weights, Execution& execution);

// x: [pairs, inputs], the pairs of one expert side by side: expert e's are rows [ends[e - 1], ends[e]).
// bias: [experts, outputs] as in MatMul. Returns [pairs, outputs]. Work grows with the experts that have pairs, not
// with all of them.
at::Tensor GroupedMatMul(const at::Tensor& x, const std::vector<PackedMatrix>& experts, const at::Tensor& bias,
                         const std::vector<int64_t>& ends, Execution& execution);

// Returns the addresses that ExpertMatMul takes; undefined for matrices that are packed for the CPU.
at::Tensor AddressesOf(const std::vector<PackedMatrix>& experts);

// Pairs of rows and experts on a GPU, where the host does not know which experts were chosen. Pair p is row
// p / pairs_per_row of x and expert chosen[p].
struct ExpertPairs {
  at::Tensor chosen;  // [pairs], int64
  int64_t pairs_per_row = 1;
  at::Tensor groups;  // by GroupPairs, or undefined

  int64_t count() const { return chosen.numel(); }
};

// Sorts the pairs by expert. There are `experts`, on a GPU with kernels. Few pairs are left as they are: the
// product looks for each expert's.
void GroupPairs(int64_t experts, ExpertPairs* pairs, const Execution& execution);

// The product of each pair: [pairs, outputs]. x: [pairs / pairs_per_row, inputs]; the groups are for this
// pairs_per_row or for 1. `addresses`: AddressesOf(experts). Returns an undefined tensor if there is no kernel.
at::Tensor ExpertMatMul(const at::Tensor& x, const std::vector<PackedMatrix>& experts, const at::Tensor& addresses,
                        const at::Tensor& bias, const ExpertPairs& pairs, const Execution& execution);

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_MATMUL_MATMUL_H_
