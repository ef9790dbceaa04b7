// What a dense layer adds to its matrix product: an adapter, and the product with a gate.
#include "models/layers/linear.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include <string>

#include "models/ops/matmul/packed_weights.h"
#include "models/step/execution.h"

namespace berth {
namespace {

constexpr int64_t kInputs = 40;
constexpr int64_t kRank = 6;
constexpr int64_t kOutputs = 24;

class LinearTest : public ::testing::Test {
 protected:
  LinearTest() { at::manual_seed(2); }

  LinearWeights Weights(const std::string& name, const at::Tensor& weight, const at::Tensor& bias) {
    return {.name = name, .weight = weight, .bias = bias, .packed = &packed_};
  }

  Execution execution_;
  PackedWeights packed_{&execution_};
};

TEST_F(LinearTest, AnAdapterIsPartOfTheProductAndOfTheGate) {
  const at::Tensor weight = at::randn({kOutputs, kInputs}), bias = at::randn({kOutputs});
  const at::Tensor down = at::randn({kRank, kInputs}), up = at::randn({kOutputs, kRank});
  const Linear plain = Weights("gate_up", weight, bias);
  const Linear adapted = plain.WithAdapter(Weights("down", down, {}), Weights("up", up, {}));
  const at::Tensor x = at::randn({3, kInputs});
  const auto expect_layer = [&](const Linear& layer, const at::Tensor& matrix) {
    const at::Tensor products = at::linear(x, matrix, bias);
    EXPECT_TRUE(at::allclose(layer(x, execution_), products, 1e-5, 1e-4));
    EXPECT_TRUE(at::allclose(layer.Logits(x, execution_), products, 1e-5, 1e-4));
    const at::Tensor gate = products.narrow(1, 0, kOutputs / 2), other = products.narrow(1, kOutputs / 2, kOutputs / 2);
    EXPECT_TRUE(at::allclose(layer.Gated(x, ops::Activation::kSilu, execution_), at::silu(gate) * other, 1e-4, 1e-3));
  };
  expect_layer(plain, weight);
  expect_layer(adapted, weight + at::matmul(up, down));
}

}  // namespace
}  // namespace berth
