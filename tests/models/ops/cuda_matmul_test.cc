// CUDA's own products against ATen in float64: of weights of 8 bits, of experts, and with a gate. By the emulated
// kernels, or on the GPU that BERTH_TEST_DEVICE names.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/ops/elementwise/elementwise.h"
#include "models/ops/matmul/matmul.h"
#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

ops::PackedMatrix Pack(const at::Tensor& weight, DType storage, Execution* execution) {
  PackedWeights packed(execution);
  return ops::PackedMatrix("weight", weight, storage, &packed);
}

struct Shape {
  int64_t inputs, outputs;
};
// Less than a step, a group, a panel, a block of sums; whole ones; and a bit more.
constexpr Shape kShapes[] = {{1, 1}, {7, 33}, {32, 32}, {100, 70}, {512, 64}, {1030, 65}};

class CudaMatMulTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    execution_.cuda_kernels = gpu_ != nullptr ? gpu_->kernels : BerthCudaKernels();
    at::manual_seed(6);
  }
  at::Tensor OnDevice(const at::Tensor& x) const { return gpu_ != nullptr ? x.to(gpu_->device) : x; }
  at::Tensor Random(int64_t rows, int64_t columns) const { return OnDevice(at::randn({rows, columns}).to(GetParam())); }
  ops::PackedMatrix Packed(const at::Tensor& weight, DType storage = DType::kFloat32) {
    return Pack(weight, storage, &execution_);
  }

  const TestDevice* const gpu_ = GetTestDevice();
  Execution execution_;
};

TEST_P(CudaMatMulTest, IsTheProduct) {
  for (const Shape& shape : kShapes) {
    const at::Tensor exact = Random(shape.outputs, shape.inputs);
    const ops::PackedMatrix weight = Packed(exact, DType::kInt8);
    EXPECT_EQ(weight.size_bytes(), shape.outputs * (shape.inputs + 4));
    const at::Tensor kept = weight.plain().to(at::kDouble) * weight.scales().to(at::kDouble).unsqueeze(1);
    const at::Tensor off = (kept - exact.to(at::kDouble)).abs() / weight.scales().unsqueeze(1);
    EXPECT_LT(off.max().item<double>(), 0.50001);
    const at::Tensor bias = Random(1, shape.outputs)[0];
    for (int64_t rows : std::vector<int64_t>{0, 1, 3, 4, 7, 16, 17, 40, 70, ops::kInt8TileRows + 1}) {
      const at::Tensor x = Random(rows, shape.inputs + 24).narrow(1, 8, shape.inputs);
      const at::Tensor expected = at::linear(x.to(at::kDouble), kept, bias.to(at::kDouble));
      const at::Tensor got = ops::MatMul(x, weight, bias, execution_);
      ASSERT_EQ(got.scalar_type(), GetParam());
      // The output is rounded to the type; of more rows than kInt8TileRows the weights are too. Half of bfloat16's last
      // bit is 2^-8 of a power of two.
      const bool is_float = GetParam() == at::kFloat;
      const double of_output = is_float ? 0x1p-24 : 0x1p-8;
      const double of_sum = is_float || rows <= ops::kInt8TileRows ? 0x1p-22 : 0x1p-8;
      const at::Tensor most = at::linear(x.to(at::kDouble).abs(), kept.abs(), bias.to(at::kDouble).abs());
      const at::Tensor bound = of_output * expected.abs() + of_sum * most;
      EXPECT_TRUE(((got.to(at::kDouble) - expected).abs() <= bound).all().item<bool>())
          << rows << " rows of " << shape.inputs << ", " << shape.outputs;
    }
  }
}

TEST_P(CudaMatMulTest, ARowsBitsDependOnThatRowAlone) {
  for (const Shape& shape : kShapes) {
    const ops::PackedMatrix weight = Packed(Random(shape.outputs, shape.inputs), DType::kInt8);
    const at::Tensor x = Random(ops::kInt8Rows, shape.inputs);
    const at::Tensor whole = ops::MatMul(x, weight, {}, execution_);
    for (int64_t rows : {1, 2, 5, 8}) {
      EXPECT_TRUE(at::equal(ops::MatMul(x.narrow(0, 3, rows), weight, {}, execution_), whole.narrow(0, 3, rows)))
          << rows;
    }
  }
}

TEST_P(CudaMatMulTest, ATilesRowsBitsDependOnThatRowAlone) {
  if (GetParam() == at::kFloat) return;  // without tiles
  for (const Shape& shape : kShapes) {
    const ops::PackedMatrix weight = Packed(Random(shape.outputs, shape.inputs), DType::kInt8);
    const at::Tensor x = Random(140, shape.inputs);
    const at::Tensor whole = ops::MatMul(x, weight, {}, execution_);
    for (int64_t rows : {17, 63, 64, 100}) {
      EXPECT_TRUE(at::equal(ops::MatMul(x.narrow(0, 9, rows), weight, {}, execution_), whole.narrow(0, 9, rows)))
          << rows;
    }
  }
}

TEST_P(CudaMatMulTest, AnOutputOfZerosIsZero) {
  at::Tensor exact = Random(9, 40);
  exact[4].zero_();
  const at::Tensor got = ops::MatMul(Random(3, 40), Packed(exact, DType::kInt8), {}, execution_);
  EXPECT_TRUE(at::equal(got.select(1, 4), OnDevice(at::zeros({3}, GetParam()))));
}

TEST_P(CudaMatMulTest, FourBitsAreRefused) { EXPECT_THROW(Packed(Random(9, 40), DType::kInt4), c10::Error); }

// The numbers that a weight stands for, in float64.
at::Tensor NumbersOf(const ops::PackedMatrix& weight) {
  const at::Tensor plain = weight.plain().to(at::kDouble);
  return weight.scales().defined() ? plain * weight.scales().to(at::kDouble).unsqueeze(1) : plain;
}

// One kernel computes both products and the activation, if the rows are few. With 8 bits it adds up and rounds as the
// two kernels do, so the bits are the same.
TEST_P(CudaMatMulTest, AGateIsMultipliedInTheProductsKernel) {
  constexpr int64_t kOutputsOfABlock = 8;
  const double of_type = GetParam() == at::kFloat ? 0x1p-24 : 0x1p-8;
  for (const auto& [inputs, dim] : std::vector<std::pair<int64_t, int64_t>>{{40, 24}, {257, 33}, {528, 1}}) {
    for (DType storage : {DType::kFloat32, DType::kInt8}) {
      const ops::PackedMatrix weight = Packed(Random(2 * dim, inputs), storage);
      const at::Tensor numbers = NumbersOf(weight), some = Random(1, 2 * dim)[0];
      for (int64_t rows : std::vector<int64_t>{0, 1, 2, 4, 5, 8, 9, 16}) {
        const at::Tensor x = Random(rows, inputs + 24).narrow(1, 8, inputs);
        const at::Tensor bias = rows % 2 == 0 ? some : at::Tensor();
        const at::Tensor wide_bias = (bias.defined() ? bias : at::zeros_like(some)).to(at::kDouble);
        const at::Tensor products = at::linear(x.to(at::kDouble), numbers, wide_bias);
        const at::Tensor most = at::linear(x.to(at::kDouble).abs(), numbers.abs(), wide_bias.abs());
        const at::Tensor errors = of_type * products.abs() + 0x1p-22 * most;
        const at::Tensor gate = products.narrow(1, 0, dim), up = products.narrow(1, dim, dim);
        const at::Tensor of_gate = errors.narrow(1, 0, dim), of_up = errors.narrow(1, dim, dim);
        for (const auto activation : {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu,
                                      ops::Activation::kSigmoid, ops::Activation::kRelu}) {
          const int64_t before = cuda_emulation::NumBlocks();
          const at::Tensor got = ops::GatedMatMul(x, weight, bias, activation, execution_);
          const bool is_one = rows > 0 && rows <= (IsQuantised(storage) ? ops::kGatedInt8Rows : ops::kGatedRows);
          if (gpu_ == nullptr && is_one) {
            EXPECT_EQ(cuda_emulation::NumBlocks() - before, (dim + kOutputsOfABlock - 1) / kOutputsOfABlock);
          }
          const at::Tensor active = reference::Activate(gate, activation);
          // No activation here is steeper than 1.13.
          const at::Tensor bound = 1.13 * of_gate * (up.abs() + of_up) + active.abs() * of_up +
                                   (of_type + 0x1p-20) * (active * up).abs() + 0x1p-24;
          EXPECT_TRUE(((got.to(at::kDouble) - active * up).abs() <= bound).all().item<bool>())
              << rows << " rows of " << inputs << ", " << dim;
          const at::Tensor apart =
              ops::GatedActivation(ops::MatMul(x, weight, bias, execution_), activation, execution_);
          EXPECT_TRUE(!IsQuantised(storage) || at::equal(got, apart)) << rows << " rows of " << inputs;
        }
      }
    }
  }
}

// Few pairs, which the product looks for; groups; and groups of more than a tile.
TEST_P(CudaMatMulTest, ExpertsMultiplyThePairsThatChoseThem) {
  constexpr int64_t kExperts = 5, kTopK = 3;
  for (const Shape& shape : kShapes) {
    for (DType storage : {DType::kFloat32, DType::kInt8}) {
      std::vector<ops::PackedMatrix> experts;
      for (int e = 0; e < kExperts; ++e) experts.push_back(Packed(Random(shape.outputs, shape.inputs), storage));
      const at::Tensor addresses = ops::AddressesOf(experts);
      const at::Tensor bias = Random(kExperts, shape.outputs);
      for (int64_t tokens : {5, 19, 150}) {
        if (tokens == 150 && shape.inputs != 100) continue;  // emulation is slow
        const int64_t pairs = tokens * kTopK;
        ops::ExpertPairs chosen = {.chosen = OnDevice(at::randint(kExperts - 1, {pairs}, at::kLong)),  // not the last
                                   .pairs_per_row = kTopK,
                                   .groups = {}};
        ops::GroupPairs(kExperts, &chosen, execution_);
        EXPECT_EQ(chosen.groups.defined(), tokens > 5);
        for (int64_t per_row : {kTopK, int64_t{1}}) {
          chosen.pairs_per_row = per_row;
          const at::Tensor x = Random(pairs / per_row, shape.inputs + 24).narrow(1, 8, shape.inputs);
          const at::Tensor got = ops::ExpertMatMul(x, experts, addresses, bias, chosen, execution_).to(at::kDouble);
          const at::Tensor rows = x.to(at::kDouble).repeat_interleave(per_row, 0);
          at::Tensor expected = at::zeros_like(got), most = at::zeros_like(got);
          for (int64_t e = 0; e < kExperts; ++e) {
            const at::Tensor kept = NumbersOf(experts[e]), added = bias[e].to(at::kDouble);
            const at::Tensor its = (chosen.chosen == e).unsqueeze(1);
            expected = at::where(its, at::linear(rows, kept, added), expected);
            most = at::where(its, at::linear(rows.abs(), kept.abs(), added.abs()), most);
          }
          const at::Tensor bound = (GetParam() == at::kFloat ? 0x1p-24 : 0x1p-8) * expected.abs() + 0x1p-22 * most;
          ASSERT_TRUE(((got - expected).abs() <= bound).all().item<bool>())
              << tokens << " tokens, " << per_row << " pairs of a row, " << shape.inputs << ", " << shape.outputs;
        }
      }
    }
  }
}

TEST_P(CudaMatMulTest, AWeightMayBeTransposed) {
  const at::Tensor transposed = Random(40, 9).t(), x = Random(3, 40);
  for (DType storage : {DType::kFloat32, DType::kInt8}) {
    const std::vector<ops::PackedMatrix> experts = {Packed(transposed, storage)};
    const at::Tensor expected = ops::MatMul(x, Packed(transposed.contiguous(), storage), {}, execution_);
    EXPECT_TRUE(at::equal(ops::MatMul(x, experts[0], {}, execution_), expected));
    const ops::ExpertPairs all = {.chosen = OnDevice(at::zeros({3}, at::kLong)), .groups = {}};
    const at::Tensor got = ops::ExpertMatMul(x, experts, ops::AddressesOf(experts), {}, all, execution_);
    EXPECT_TRUE(at::allclose(got, expected, /*rtol=*/1e-2, /*atol=*/1e-2));
  }
}

// An expert without pairs gets no blocks.
TEST_P(CudaMatMulTest, FewPairsLaunchNoBlocksForOtherExperts) {
  constexpr int64_t kExperts = 40, kOutputs = 33, kInputs = 48, kOutputsOfABlock = 16;
  for (DType storage : {DType::kFloat32, DType::kInt8}) {
    std::vector<ops::PackedMatrix> experts;
    for (int64_t e = 0; e < kExperts; ++e) experts.push_back(Packed(Random(kOutputs, kInputs), storage));
    const at::Tensor addresses = ops::AddressesOf(experts);
    // Pairs of two rows; experts chosen once, twice and three times, the first and the last one among them.
    const ops::ExpertPairs pairs = {
        .chosen = OnDevice(at::tensor({39, 7, 0, 7, 0, 7}, at::kLong)), .pairs_per_row = 3, .groups = {}};
    const at::Tensor x = Random(2, kInputs);
    const int64_t before = cuda_emulation::NumBlocks();
    const at::Tensor got = ops::ExpertMatMul(x, experts, addresses, {}, pairs, execution_);
    if (GetTestDevice() == nullptr) {
      EXPECT_EQ(cuda_emulation::NumBlocks() - before, (kOutputs + kOutputsOfABlock - 1) / kOutputsOfABlock * 6);
    }
    // With as many pairs as experts, each expert has its blocks.
    const at::Tensor more = OnDevice(at::full({39}, 3, at::kLong));
    const ops::ExpertPairs many = {.chosen = at::cat({pairs.chosen, more}), .pairs_per_row = 3, .groups = {}};
    const at::Tensor of_many =
        ops::ExpertMatMul(at::cat({x, Random(13, kInputs)}), experts, addresses, {}, many, execution_);
    EXPECT_TRUE(at::equal(got, of_many.narrow(0, 0, 6)));
  }
}

// In the order of the experts, and among an expert's in their own.
TEST_P(CudaMatMulTest, GroupsAreSorted) {
  constexpr int64_t kExperts = 7;
  for (int64_t count : {29, 128, 129, 1000}) {
    const at::Tensor chosen = at::randint(kExperts, {count}, at::kLong);
    ops::ExpertPairs pairs = {.chosen = OnDevice(chosen), .pairs_per_row = 4, .groups = {}};
    ops::GroupPairs(kExperts, &pairs, execution_);
    const at::Tensor groups = pairs.groups.cpu();
    const at::Tensor order = std::get<1>(at::sort(chosen, /*stable=*/true, /*dim=*/0, /*descending=*/false));
    EXPECT_TRUE(at::equal(groups.narrow(0, 0, count).to(at::kLong), order));
    EXPECT_TRUE(at::equal(groups.narrow(0, count, count).to(at::kLong), at::floor_divide(order, 4)));
    const at::Tensor ends = at::bincount(chosen, {}, kExperts).cumsum(0);
    EXPECT_TRUE(at::equal(groups.narrow(0, 2 * count, kExperts).to(at::kLong), ends));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaMatMulTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace berth
