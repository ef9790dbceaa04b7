// The elementwise operations against their ATen references, at odd sizes.
#include "models/ops/elementwise/elementwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/models/aten_calls.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kHeads = 6;
constexpr int64_t kHeadDim = 20;

class ElementwiseTest : public KernelTest {
 protected:
  void SetUp() override {
    const KvSpec kv = {.kv_heads = 2, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype()};
    SetUpCache({{.kv = kv}});
  }
};

TEST_P(ElementwiseTest, RmsNorm) {
  for (int64_t dim : {1, 20, 133, 5000}) {
    const at::Tensor x = Random(11, 3 * dim);
    const at::Tensor weight = at::randn({dim});
    ExpectClose(ops::RmsNorm(OnDevice(x), OnDevice(weight), 1e-5, execution_), reference::RmsNorm(x, weight, 1e-5));
    at::Tensor in_place = OnDevice(x).clone();
    ops::RmsNormInPlace(in_place, OnDevice(weight), 1e-5, execution_);
    ExpectClose(in_place, reference::RmsNorm(x, weight, 1e-5));
  }
}

// Its input may be far from 0: the sum of squares is one of deviations.
TEST_P(ElementwiseTest, LayerNorm) {
  const at::ScalarType type = GetParam().type;
  for (int64_t dim : {1, 20, 136, 1000, 1025, 5000}) {
    const at::Tensor weight = at::randn({dim});
    for (double mean : {0.0, 30.0}) {
      const at::Tensor x = Random(11, dim) + mean;
      for (const at::Tensor& bias : {at::Tensor(), at::randn({dim})}) {
        ExpectClose(ops::LayerNorm(OnDevice(x), OnDevice(weight), OnDevice(bias), 1e-5, type, execution_),
                    reference::LayerNorm(x, weight, bias, 1e-5), /*roundings=*/mean == 0 ? 2e-6 : 2e-5);
        const at::Tensor wide = x.to(at::kFloat) * 1.001;
        ExpectClose(ops::LayerNorm(OnDevice(wide), OnDevice(weight), OnDevice(bias), 1e-5, type, execution_),
                    reference::LayerNorm(wide.to(type), weight, bias, 1e-5), mean == 0 ? 2e-6 : 2e-5);
      }
    }
  }
}

TEST_P(ElementwiseTest, TheNormsRoundTheirInputThemselves) {
  const at::Tensor stream = OnDevice(at::randn({7, 64}));
  const at::Tensor weight = OnDevice(at::ones({64}));
  const AtenCalls calls;
  ops::RmsNorm(stream, weight, 1e-5, GetParam().type, execution_);
  ops::LayerNorm(stream, weight, {}, 1e-5, GetParam().type, execution_);
  EXPECT_EQ(calls.Count("aten::to") + calls.Count("aten::_to_copy"), 0);
}

// A stream in float32 is rounded to the model's type before a norm, and stays what it is when something is added.
TEST_P(ElementwiseTest, TheResidualStreamMayBeWider) {
  for (int64_t dim : {1, 20, 133, 5000}) {
    const at::Tensor weight = at::randn({dim});
    const at::Tensor x = Random(11, dim);
    for (at::ScalarType type : {at::kFloat, GetParam().type}) {
      const at::Tensor stream = at::randn({11, dim + 3}).to(type).narrow(1, 0, dim);
      ExpectClose(ops::RmsNorm(OnDevice(stream), OnDevice(weight), 1e-5, GetParam().type, execution_),
                  reference::RmsNorm(stream.to(GetParam().type), weight, 1e-5));
      for (double scale : {1.0, 0.5}) {
        const at::Tensor sum = ops::AddResidual(OnDevice(stream), OnDevice(x), execution_, scale).cpu();
        ASSERT_EQ(sum.scalar_type(), type);
        const at::Tensor exact = stream.to(at::kDouble) + x.to(at::kDouble) * scale;
        ASSERT_TRUE(at::allclose(sum.to(at::kDouble), exact, type == at::kFloat ? 1e-6 : 1.0 / 256, 1e-6));
      }
    }
  }
}

// stream + scale * x, rounded once before the stream's own rounding.
at::Tensor FusedSum(const at::Tensor& stream, const at::Tensor& x, double scale) {
  const at::Tensor sum = stream.cpu().to(at::kFloat).contiguous().clone();
  const at::Tensor addend = x.cpu().to(at::kFloat).contiguous();
  float* const out = sum.mutable_data_ptr<float>();
  const float* const y = addend.const_data_ptr<float>();
  for (int64_t i = 0; i < sum.numel(); ++i) out[i] = std::fmaf(static_cast<float>(scale), y[i], out[i]);
  return sum.to(stream.scalar_type()).to(stream.device());
}

// One kernel adds and norms. On the CPU it has the bits of two.
TEST_P(ElementwiseTest, NormsASum) {
  const at::ScalarType type = GetParam().type;
  for (int64_t dim : {1, 20, 133, 1024, 1032, 5000}) {
    const at::Tensor weight = OnDevice(at::randn({dim}));
    const at::Tensor x = OnDevice(Random(11, dim + 5)).narrow(1, 0, dim);
    for (at::ScalarType stream_type : {at::kFloat, type}) {
      const at::Tensor stream = OnDevice(at::randn({11, dim + 3}).to(stream_type)).narrow(1, 0, dim);
      for (double scale : {1.0, 0.22}) {
        const at::Tensor sum =
            GetParam().on_cuda() ? FusedSum(stream, x, scale) : ops::AddResidual(stream, x, execution_, scale);
        const ops::PendingSum pending = {.stream = stream, .x = x, .scale = scale};
        const ops::SumAndNorm rms = ops::RmsNormOfSum(pending, weight, 1e-5, type, execution_);
        ASSERT_EQ(rms.sum.scalar_type(), stream_type);
        EXPECT_TRUE(at::equal(rms.sum, sum));
        EXPECT_TRUE(at::equal(rms.normed, ops::RmsNorm(sum, weight, 1e-5, type, execution_)));
        for (const at::Tensor& bias : {at::Tensor(), OnDevice(at::randn({dim}))}) {
          const ops::SumAndNorm layer = ops::LayerNormOfSum(pending, weight, bias, 1e-5, type, execution_);
          EXPECT_TRUE(at::equal(layer.sum, sum));
          EXPECT_TRUE(at::equal(layer.normed, ops::LayerNorm(sum, weight, bias, 1e-5, type, execution_)));
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, NormsASumWithoutAten) {
  const at::Tensor stream = OnDevice(at::randn({7, 64}));
  const at::Tensor x = OnDevice(Random(7, 64));
  const at::Tensor weight = OnDevice(at::ones({64}));
  const AtenCalls calls;
  ops::RmsNormOfSum({.stream = stream, .x = x, .scale = 1}, weight, 1e-5, GetParam().type, execution_);
  ops::LayerNormOfSum({.stream = stream, .x = x, .scale = 1}, weight, {}, 1e-5, GetParam().type, execution_);
  EXPECT_EQ(calls.Count("aten::add") + calls.Count("aten::to") + calls.Count("aten::_to_copy"), 0);
}

TEST_P(ElementwiseTest, RefusesRowsWithAStride) {
  at::Tensor columns = OnDevice(Random(12, 10)).t();
  const at::Tensor angles = at::rand({10, 6});
  EXPECT_THROW(ops::RmsNorm(columns, OnDevice(at::ones({12})), 1e-5, execution_), c10::Error);
  EXPECT_THROW(
      ops::GatedRmsNorm(OnDevice(Random(10, 12)), columns, OnDevice(at::ones({12})), 1e-5, 1, false, execution_),
      c10::Error);
  const ops::Rotation rotation = {
      .cos = OnDevice(angles), .sin = OnDevice(angles), .rows = OnDevice(at::zeros({10}, at::kLong))};
  EXPECT_THROW(ops::Rotary(columns, rotation, 12, execution_), c10::Error);
}

TEST_P(ElementwiseTest, GatedRmsNorm) {
  for (int64_t dim : {22, 4100}) {
    const at::Tensor x = Random(9, 3 * dim);
    const at::Tensor gate = Random(9, 3 * dim);
    const at::Tensor weight = at::randn({3 * dim});
    for (bool gate_first : {false, true}) {
      ExpectClose(ops::GatedRmsNorm(OnDevice(x), OnDevice(gate), OnDevice(weight), 1e-5, 3, gate_first, execution_),
                  reference::GatedRmsNorm(x, gate, weight, 1e-5, 3, gate_first));
    }
  }
}

TEST_P(ElementwiseTest, ActivateDependsOnTheElementAlone) {
  const at::Tensor x = Random(7, 45);
  for (ops::Activation activation :
       {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu, ops::Activation::kSigmoid,
        ops::Activation::kRelu, ops::Activation::kReluSquared}) {
    const at::Tensor all = ops::Activate(OnDevice(x), activation, execution_);
    ExpectClose(all, reference::Activate(x.to(at::kFloat), activation).to(x.scalar_type()));
    for (int64_t row = 0; row < x.size(0); ++row) {
      EXPECT_TRUE(
          at::equal(ops::Activate(OnDevice(x.narrow(0, row, 1)), activation, execution_), all.narrow(0, row, 1)));
    }
  }
}

TEST_P(ElementwiseTest, GatedActivation) {
  const at::Tensor x = Random(9, 2 * 77) * 6;
  for (ops::Activation activation :
       {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu, ops::Activation::kRelu,
        ops::Activation::kReluSquared, ops::Activation::kClampedSwiglu}) {
    ExpectClose(ops::GatedActivation(OnDevice(x), activation, execution_), reference::GatedActivation(x, activation));
  }
}

TEST_P(ElementwiseTest, ClampedSwigluHasItsConstants) {
  const at::Tensor x = Random(9, 2 * 77) * 6;
  for (const ops::SwigluConstants& swiglu : {ops::SwigluConstants{.alpha = 0.6f, .limit = 2.5f},
                                             ops::SwigluConstants{.limit = std::numeric_limits<float>::infinity()}}) {
    const at::Tensor expected = reference::GatedActivation(x, ops::Activation::kClampedSwiglu, swiglu);
    EXPECT_FALSE(at::equal(expected, reference::GatedActivation(x, ops::Activation::kClampedSwiglu)));
    ExpectClose(ops::GatedActivation(OnDevice(x), ops::Activation::kClampedSwiglu, execution_, swiglu), expected);
  }
}

TEST_P(ElementwiseTest, Rotary) {
  const at::Tensor angles = at::rand({200, 6}) * 7;  // a rotary dimension of 12 of the head's 20
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    at::Tensor expected = Random(fast_->num_tokens(), kHeads * kHeadDim);
    at::Tensor fast = OnDevice(expected).clone();
    ops::Rotary(fast, {.cos = OnDevice(angles.cos()), .sin = OnDevice(angles.sin()), .rows = fast_->device_positions()},
                kHeadDim, execution_);
    reference::Rotary(expected, {.cos = angles.cos(), .sin = angles.sin(), .rows = reference_->device_positions()},
                      kHeadDim);
    ASSERT_NO_FATAL_FAILURE(ExpectClose(fast, expected));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
