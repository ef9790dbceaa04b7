// Dense products against ATen in float64, and the contract that a row's bits depend on that row alone.
#include "models/ops/matmul/matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/step/thread_pool.h"
#include "tests/models/ops/kernel_sets.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

struct Param {
  KernelParam kernel;
  DType storage;
};

std::vector<Param> Params() {
  std::vector<Param> params;
  for (const KernelParam& kernel : KernelParams()) {
    for (DType storage : {DType::kFloat32, DType::kInt8, DType::kInt4}) {
      params.push_back({kernel, storage});
    }
  }
  return params;
}

ops::PackedMatrix Pack(const at::Tensor& weight, DType storage, Execution* execution) {
  PackedWeights packed(execution);
  return ops::PackedMatrix("weight", weight, storage, &packed);
}

std::string ParamName(const ::testing::TestParamInfo<Param>& info) {
  const DType storage = info.param.storage;
  return KernelParamName({info.param.kernel, 0}) + "_" +
         (IsQuantised(storage) ? std::string(DTypeName(storage)) : "exact");
}

struct Shape {
  int64_t inputs, outputs;
};
// Less than a step, a group, a panel, a block of sums; whole ones; and a bit more.
constexpr Shape kShapes[] = {{1, 1}, {7, 33}, {32, 32}, {100, 70}, {512, 64}, {1030, 65}};
constexpr int64_t kMostRows = 70;

class MatMulTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    execution_.cpu_kernels = GetParam().kernel.kernels;
    at::manual_seed(5);
  }

  at::ScalarType type() const { return GetParam().kernel.type; }
  bool exact() const { return GetParam().storage == DType::kFloat32; }
  at::Tensor Random(int64_t rows, int64_t columns) const { return at::randn({rows, columns}).to(type()); }
  ops::PackedMatrix Packed(const at::Tensor& weight, DType storage = DType::kFloat32) {
    return Pack(weight, storage, &execution_);
  }
  // A slice of a wider product, as layers give it.
  at::Tensor Rows(int64_t rows, int64_t columns) const { return Random(rows, columns + 24).narrow(1, 8, columns); }

  // The largest change by quantising, relative to the largest of a row's inputs or of an output's weights. It is half a
  // step of 127. In int4 the extremes of 32 weights may be cut by a quarter.
  double InputError() const { return exact() ? 0 : 0.5 / 127; }
  double WeightError() const {
    if (GetParam().storage == DType::kInt4) return 0.25;
    return InputError();
  }

  // float32: a few roundings of sums of up to 512 terms, of the sum of the terms' magnitudes. bfloat16 rounds the
  // result as well.
  void ExpectClose(const at::Tensor& actual, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    const at::Tensor wide_x = x.to(at::kDouble), wide_weight = weight.to(at::kDouble);
    const at::Tensor wide_bias = bias.defined() ? bias.to(at::kDouble) : bias;
    const at::Tensor expected = at::linear(wide_x, wide_weight, wide_bias);
    const at::Tensor x_error = wide_x.abs().amax(1, true).mul(InputError()).expand_as(x);
    const at::Tensor weight_error = wide_weight.abs().amax(1, true).mul(WeightError()).expand_as(weight);
    const at::Tensor quantised = at::linear(x_error, wide_weight.abs()) + at::linear(wide_x.abs(), weight_error) +
                                 at::linear(x_error, weight_error);
    const at::Tensor magnitude = at::linear(wide_x.abs(), wide_weight.abs(), bias.defined() ? wide_bias.abs() : bias);
    const double rounding = type() == at::kFloat ? 2e-6 : 1.0 / 256;
    const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
    ASSERT_TRUE((error <= quantised + magnitude * rounding).all().item<bool>())
        << weight.sizes() << ", " << x.size(0) << " rows: " << error.max().item<double>();
    if (bias.defined() || x.size(0) < kMostRows || weight.numel() < 1000) return;
    // In the mean it is much less: measured 0.0105 and 0.084 of the result, on normal numbers.
    const double mean = error.square().mean().sqrt().item<double>();
    const double allowed = exact() ? rounding : (GetParam().storage == DType::kInt8 ? 0.012 : 0.1);
    ASSERT_LE(mean, allowed * expected.square().mean().sqrt().item<double>()) << weight.sizes();
  }

  Execution execution_;
};

// The largest sums of integers that there are: of two inputs in four, or of all, in either direction.
TEST_P(MatMulTest, TheLargestSumsFit) {
  constexpr int64_t kInputs = 1024;
  const float low = GetParam().storage == DType::kInt4 ? -120 : -127;   // -8 or -127 times a scale of 15 or 1
  const float high = GetParam().storage == DType::kInt4 ? 105 : 127;    // 7 or 127 times
  const at::Tensor first_two = at::arange(kInputs).remainder(4).lt(2);  // of each four inputs
  std::vector<at::Tensor> rows, outputs;
  for (int i = 0; i < 4; ++i) {
    const bool first = i % 2 != 0, second = i / 2 != 0;
    rows.push_back(at::where(first_two, first ? 127.0f : -127.0f, second ? 127.0f : -127.0f));
    outputs.push_back(at::where(first_two, first ? high : low, second ? high : low));
  }
  outputs.push_back(at::where(at::arange(kInputs).lt(1), low, high));
  const at::Tensor x = at::stack(rows).to(type()), weight = at::stack(outputs).to(type());
  const ops::PackedMatrix packed = Packed(weight, GetParam().storage);
  for (const at::Tensor& some : {x, x.repeat({10, 1})}) {  // few rows and many have different tiles
    const at::Tensor out = ops::MatMul(some, packed, at::Tensor(), execution_);
    ASSERT_TRUE(at::equal(out, at::linear(some.to(at::kDouble), weight.to(at::kDouble)).to(type()))) << out;
  }
}

TEST_P(MatMulTest, IsTheProduct) {
  for (const Shape& shape : kShapes) {
    const at::Tensor weight = Random(shape.outputs, shape.inputs);
    const at::Tensor bias = at::randn({shape.outputs});
    const ops::PackedMatrix packed = Packed(weight, GetParam().storage);
    for (int64_t rows : {int64_t{1}, int64_t{5}, kMostRows, int64_t{300}}) {
      const at::Tensor x = Rows(rows, shape.inputs);
      for (const at::Tensor& b : {at::Tensor(), bias}) {
        const at::Tensor out = ops::MatMul(x, packed, b, execution_);
        ASSERT_EQ(out.scalar_type(), type());
        ASSERT_NO_FATAL_FAILURE(ExpectClose(out, x, weight, b));
        const at::Tensor in_float32 = ops::MatMul(x, packed, b, execution_, /*in_float32=*/true);
        ASSERT_EQ(in_float32.scalar_type(), at::kFloat);
        ASSERT_TRUE(at::equal(in_float32, out.to(at::kFloat)));
      }
    }
  }
}

TEST_P(MatMulTest, ARowsBitsDependOnThatRowAlone) {
  for (const Shape& shape : kShapes) {
    const ops::PackedMatrix packed = Packed(Random(shape.outputs, shape.inputs), GetParam().storage);
    const at::Tensor bias = at::randn({shape.outputs});
    const at::Tensor x = Rows(kMostRows, shape.inputs);
    std::vector<at::Tensor> alone;
    for (int64_t row = 0; row < kMostRows; ++row)
      alone.push_back(ops::MatMul(x.narrow(0, row, 1), packed, bias, execution_));
    const at::Tensor expected = at::cat(alone);
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Execution shared = {.cpu_kernels = GetParam().kernel.kernels, .threads = &pool};
      for (int64_t rows = 1; rows <= kMostRows; ++rows) {
        const int64_t first = (rows * 7) % (kMostRows - rows + 1);
        const at::Tensor out = ops::MatMul(x.narrow(0, first, rows), packed, bias, shared);
        ASSERT_TRUE(at::equal(out, expected.narrow(0, first, rows)))
            << rows << " rows, " << shape.outputs << " x " << shape.inputs << ", " << threads << " threads";
      }
    }
  }
}

// Large enough for threads and for more than one chunk of rows.
TEST_P(MatMulTest, ManyRowsHaveTheBitsOfOne) {
  constexpr int64_t kRows = 450, kInputs = 600, kOutputs = 200;
  const ops::PackedMatrix packed = Packed(Random(kOutputs, kInputs), GetParam().storage);
  const at::Tensor x = Rows(kRows, kInputs);
  ThreadPool pool(2);
  execution_.threads = &pool;
  const at::Tensor out = ops::MatMul(x, packed, {}, execution_);
  for (int64_t row : {0, 1, 95, 96, 191, 192, 400, 449}) {
    ASSERT_TRUE(at::equal(out.narrow(0, row, 1), ops::MatMul(x.narrow(0, row, 1), packed, {}, execution_))) << row;
  }
}

TEST_P(MatMulTest, ANumberThatIsNoneStaysInItsRow) {
  const ops::PackedMatrix packed = Packed(Random(40, 100), GetParam().storage);
  const at::Tensor x = Random(9, 100);
  const at::Tensor clean = ops::MatMul(x, packed, {}, execution_);
  x[3][50] = std::numeric_limits<float>::quiet_NaN();
  x[6][99] = std::numeric_limits<float>::infinity();
  const at::Tensor out = ops::MatMul(x, packed, {}, execution_);
  for (int64_t row = 0; row < 9; ++row) {
    if (row == 3 || row == 6) {
      EXPECT_FALSE(out[row].isfinite().any().item<bool>()) << row;
    } else {
      EXPECT_TRUE(at::equal(out[row], clean[row])) << row;
    }
  }
}

// Weights of ones make sums that floats hold and bfloat16 does not: halves of a last bit, a little more and a little
// less.
TEST_P(MatMulTest, SumsAreRoundedToNearestAndTiesToEven) {
  if (!exact() || type() != at::kBFloat16) return;
  const ops::PackedMatrix ones = Packed(at::ones({40, 2}, at::kBFloat16));
  const at::Tensor high = Random(300, 1), exponent = std::get<1>(at::frexp(high.to(at::kFloat)));
  for (double scale : {0.0, 1.0, -1.0, 1 + 0x1p-7, 1 - 0x1p-7, 0.5, -1 - 0x1p-7}) {
    const at::Tensor half = at::ldexp(at::full({300, 1}, scale), exponent - 9);
    const at::Tensor out = ops::MatMul(at::cat({high, half.to(at::kBFloat16)}, 1), ones, {}, execution_);
    const at::Tensor expected = (high.to(at::kFloat) + half).to(at::kBFloat16).expand({300, 40});
    EXPECT_TRUE(at::equal(out, expected)) << scale;
  }
}

// Inputs and weights that 8 bits hold: their scales are 1, and nothing is rounded but the result.
TEST_P(MatMulTest, WholeNumbersOfEightBitsAreExact) {
  if (GetParam().storage != DType::kInt8) return;
  constexpr int64_t kInputs = 3 * ops::kQuantGroup + 5;
  const auto whole = [&](int64_t rows) { return at::randint(-127, 128, {rows, kInputs}, at::kFloat); };
  const at::Tensor weight = whole(70);
  weight.select(1, 3).fill_(127);
  const ops::PackedMatrix packed = Packed(weight.to(type()), DType::kInt8);
  for (int64_t rows : {1, 4, 9, 40}) {
    at::Tensor x = whole(rows);
    for (int64_t k = 1; k < kInputs; k += ops::kQuantGroup) x.select(1, k).fill_(-127);
    const at::Tensor out = ops::MatMul(x.to(type()), packed, {}, execution_);
    EXPECT_TRUE(at::equal(out, at::linear(x.to(at::kDouble), weight.to(at::kDouble)).to(type()))) << rows;
  }
}

TEST_P(MatMulTest, BlocksAreProductsOfTheirColumns) {
  const at::Tensor x = Rows(6, 3 * 20);
  std::vector<ops::PackedMatrix> packed;
  std::vector<at::Tensor> expected;
  for (int64_t block = 0; block < 3; ++block) {
    packed.push_back(Packed(Random(11, 20), GetParam().storage));
    expected.push_back(ops::MatMul(x.narrow(1, block * 20, 20), packed.back(), {}, execution_));
  }
  EXPECT_TRUE(at::equal(ops::BlockDiagonalMatMul(x, packed, execution_), at::cat(expected, 1)));
}

TEST_P(MatMulTest, GroupsLeaveIdleExpertsAlone) {
  const at::Tensor x = Rows(9, 20);
  const at::Tensor bias = at::randn({5, 7});
  std::vector<ops::PackedMatrix> experts;
  for (int64_t e = 0; e < 5; ++e) experts.push_back(Packed(Random(7, 20), GetParam().storage));
  const std::vector<int64_t> ends = {4, 4, 5, 9, 9};
  for (const at::Tensor& b : {at::Tensor(), bias}) {
    const at::Tensor out = ops::GroupedMatMul(x, experts, b, ends, execution_);
    for (int64_t e : {0, 2, 3}) {
      const int64_t begin = e == 0 ? 0 : ends[e - 1];
      const at::Tensor rows = x.narrow(0, begin, ends[e] - begin);
      EXPECT_TRUE(at::equal(out.narrow(0, begin, ends[e] - begin),
                            ops::MatMul(rows, experts[e], b.defined() ? b[e] : b, execution_)));
    }
  }
  EXPECT_EQ(ops::GroupedMatMul(x.narrow(0, 0, 0), experts, {}, {0, 0, 0, 0, 0}, execution_).size(0), 0);
}

TEST_P(MatMulTest, NarrowFloatsAreKeptAsSuch) {
  if (!exact() || type() != at::kFloat) return;
  const at::Tensor weight = at::randn({64, 300});
  const at::Tensor narrow = weight.to(at::kBFloat16).to(at::kFloat);
  EXPECT_EQ(Packed(weight).size_bytes(), 64 * 300 * 4);
  EXPECT_EQ(Packed(narrow).size_bytes(), 64 * 320 * 2);  // whole groups
  // Multiplied as the same numbers in float32 are: one that is not narrow makes the other rows take the wider form.
  const at::Tensor wide = at::cat({narrow, weight.narrow(0, 0, 1)});
  const at::Tensor x = at::randn({13, 300});
  EXPECT_TRUE(at::equal(ops::MatMul(x, Packed(narrow), {}, execution_),
                        ops::MatMul(x, Packed(wide), {}, execution_).narrow(1, 0, 64)));
}

// By each set of kernels; the weight and the inputs are the same.
at::Tensor ProductBy(const ops::cpu::Kernels& kernels, const at::Tensor& x, const at::Tensor& weight, DType storage) {
  Execution execution = {.cpu_kernels = &kernels};
  return ops::MatMul(x, Pack(weight, storage, &execution), {}, execution);
}

// The emulation equals the processor. Tiles do not compute float32, and they change no bit of products with quantised
// weights.
TEST(ProductOpsTilesTest, HaveTheBitsOfTheirEmulation) {
  const ops::cpu::Kernels& emulation = ops::cpu::amx_emulated::kKernels;
  if (!RunsHere(emulation)) GTEST_SKIP() << "the machine lacks " << ops::cpu::MissingInstructions(emulation);
  const bool has_tiles = RunsHere(ops::cpu::amx::kKernels);
  at::manual_seed(6);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (DType storage : {DType::kFloat32, DType::kInt8, DType::kInt4}) {
      for (int64_t rows : {1, 16, 17, 70}) {
        const at::Tensor weight = at::randn({65, 1030}).to(type), x = at::randn({rows, 1030}).to(type);
        const at::Tensor emulated = ProductBy(emulation, x, weight, storage);
        if (type == at::kFloat || storage != DType::kFloat32) {
          EXPECT_TRUE(at::equal(emulated, ProductBy(ops::cpu::avx512_bf16::kKernels, x, weight, storage))) << rows;
        }
        if (has_tiles) {
          EXPECT_TRUE(at::equal(emulated, ProductBy(ops::cpu::amx::kKernels, x, weight, storage))) << rows;
        }
      }
    }
  }
}

// Dot products of bytes change no bit of products with quantised weights: their sums are of integers.
TEST(ProductOpsBytesTest, HaveTheSameBitsWithAndWithoutDotProducts) {
  namespace cpu = ops::cpu;
  const std::pair<const cpu::Kernels*, const cpu::Kernels*> pairs[] = {
      {&cpu::avx512_bf16::kKernels, &cpu::avx512::kKernels},
      {&cpu::avx512_vnni::kKernels, &cpu::avx512::kKernels},
      {&cpu::avx2_vnni::kKernels, &cpu::avx2::kKernels},
      {&cpu::avx2_vnni_emulated::kKernels, &cpu::avx2::kKernels}};
  at::manual_seed(7);
  int num_pairs = 0;
  for (const auto& [dots, plain] : pairs) {
    if (!RunsHere(*dots)) continue;
    ++num_pairs;
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (DType storage : {DType::kInt8, DType::kInt4}) {
        for (int64_t rows : {1, 2, 3, 5, 6, 7, 13, 70}) {
          const at::Tensor weight = at::randn({65, 1030}).to(type), x = at::randn({rows, 1030}).to(type);
          EXPECT_TRUE(at::equal(ProductBy(*dots, x, weight, storage), ProductBy(*plain, x, weight, storage)))
              << dots->capability << " " << rows;
        }
      }
    }
  }
  EXPECT_GE(num_pairs, 1) << "not even the emulated one, which needs AVX2 only";
}

INSTANTIATE_TEST_SUITE_P(All, MatMulTest, ::testing::ValuesIn(Params()), ParamName);

}  // namespace
}  // namespace berth
