// New tokens' heads before attention: one kernel against the ATen reference, and against the operations that it joins,
// bit for bit. Over every way to store keys and values, with sizes that lie on 16 bytes and others.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/ops/elementwise/elementwise.h"
#include "models/ops/paged_attention/paged_attention.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kRotaryDim = 12;

// What is done to the heads.
struct Variant {
  std::string name;
  bool q_norm = false, k_norm = false, v_norm = false;
  bool norms_all_heads = false;  // of queries, together
  bool norms_after_rotary = false;
  bool rotates = false;
  bool has_keys = true;
};

std::vector<Variant> Variants() {
  return {{.name = "nothing"},
          {.name = "rotary", .rotates = true},
          {.name = "norms, rotary", .q_norm = true, .k_norm = true, .rotates = true},
          {.name = "rotary, norms", .q_norm = true, .k_norm = true, .norms_after_rotary = true, .rotates = true},
          {.name = "all norms", .q_norm = true, .k_norm = true, .v_norm = true},
          {.name = "norm of all heads", .q_norm = true, .norms_all_heads = true, .rotates = true},
          {.name = "another layer's keys", .q_norm = true, .rotates = true, .has_keys = false}};
}

class PrepareHeadsTest : public KernelTest {
 protected:
  // Two layers of each kind: the kernel writes the first, the operations that it joins write the second.
  void SetUp() override {
    std::vector<LayerCacheSpec> layers;
    for (int64_t dim : {20, 64}) {
      const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = dim, .value_dim = dim, .dtype = dtype()};
      std::vector<LayerCacheSpec> plain = {{.kv = kv}, {.kv = kv}};
      layers.insert(layers.end(), plain.begin(), plain.end());
      for (const auto& [stored, recent] : {std::pair{DType::kInt8, 0}, {DType::kInt4, 0}, {DType::kInt4, 10}}) {
        std::vector<LayerCacheSpec> quantised = plain;
        QuantiseKv(stored, recent, &quantised);
        layers.insert(layers.end(), quantised.begin(), quantised.end());
      }
    }
    SetUpCache(layers);
    angles_ = at::rand({200, kRotaryDim / 2}) * 7;
  }

  ops::NewHeads Heads(const Variant& variant, const at::Tensor& qkv, int64_t dim) {
    const auto norm = [&](bool is_there, int64_t size) -> ops::HeadNormWeights {
      return {.weight = is_there ? at::randn({size}) : at::Tensor(), .eps = 1e-5};
    };
    return {.qkv = qkv,
            .q_heads = kQHeads,
            .kv_heads = variant.has_keys ? kKvHeads : 0,
            .head_dim = dim,
            .q_norm = norm(variant.q_norm, variant.norms_all_heads ? kQHeads * dim : dim),
            .k_norm = norm(variant.k_norm, dim),
            .v_norm = norm(variant.v_norm, dim),
            .norms_after_rotary = variant.norms_after_rotary,
            .rotation = variant.rotates ? ops::Rotation{.cos = angles_.cos(), .sin = angles_.sin()} : ops::Rotation{}};
  }

  ops::NewHeads OnDevice(ops::NewHeads heads) const {
    for (at::Tensor* tensor : {&heads.qkv, &heads.q_norm.weight, &heads.k_norm.weight, &heads.v_norm.weight,
                               &heads.rotation.cos, &heads.rotation.sin}) {
      *tensor = KernelTest::OnDevice(*tensor);
    }
    heads.rotation.rows = fast_->device_positions();
    return heads;
  }

  // The operations that PrepareHeads joins, by these functions. Returns the queries.
  template <typename Norm, typename Rotate, typename Write>
  static at::Tensor InParts(const ops::NewHeads& heads, const Norm& norm, const Rotate& rotate, const Write& write) {
    const int64_t q_columns = kQHeads * heads.head_dim, kv_columns = heads.kv_heads * heads.head_dim;
    at::Tensor q = heads.qkv.narrow(1, 0, q_columns), k = heads.qkv.narrow(1, q_columns, kv_columns);
    at::Tensor v = heads.qkv.narrow(1, q_columns + kv_columns, kv_columns);
    at::Tensor qk = heads.qkv.narrow(1, 0, q_columns + kv_columns);
    const auto norm_both = [&] {
      if (heads.q_norm.weight.defined()) norm(q, heads.q_norm);
      if (heads.k_norm.weight.defined()) norm(k, heads.k_norm);
    };
    if (!heads.norms_after_rotary) norm_both();
    if (heads.rotation.cos.defined()) rotate(qk);
    if (heads.norms_after_rotary) norm_both();
    if (heads.v_norm.weight.defined()) norm(v, heads.v_norm);
    if (heads.kv_heads > 0) write(k, v);
    return q;
  }
  at::Tensor ByReferences(const ops::NewHeads& heads, int layer) {
    ops::Rotation rotation = heads.rotation;
    rotation.rows = reference_->device_positions();
    return InParts(
        heads,
        [](at::Tensor& x, const ops::HeadNormWeights& norm) { x.copy_(reference::RmsNorm(x, norm.weight, norm.eps)); },
        [&](at::Tensor& x) { reference::Rotary(x, rotation, heads.head_dim); },
        [&](const at::Tensor& k, const at::Tensor& v) { reference::WriteKv(k, v, layer, *reference_); });
  }
  at::Tensor ByOperations(const ops::NewHeads& heads, int layer) {
    return InParts(
        heads,
        [&](at::Tensor& x, const ops::HeadNormWeights& norm) {
          ops::RmsNormInPlace(x, norm.weight, norm.eps, execution_);
        },
        [&](at::Tensor& x) { ops::Rotary(x, heads.rotation, heads.head_dim, execution_); },
        [&](const at::Tensor& k, const at::Tensor& v) { ops::WriteKv(k, v, layer, *fast_); });
  }

  // Two ways to prepare the same heads by kernels: equal bits. nvcc may join other products and sums in each.
  void ExpectSame(const at::Tensor& actual, const at::Tensor& expected) {
    if (GetParam().device != nullptr) return ExpectClose(actual, expected);
    ASSERT_TRUE(at::equal(actual, expected));
  }

  at::Tensor angles_;  // of positions: [200, kRotaryDim / 2]
};

TEST_P(PrepareHeadsTest, IsWhatItsPartsAre) {
  const std::vector<Variant> variants = Variants();
  size_t turn = 0;
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    ++turn;
    for (int layer = 0; layer < static_cast<int>(specs_.size()); layer += 2) {
      const int64_t dim = specs_[layer].kv->key_dim;
      for (size_t first : {0, 3}) {  // all of them in the course of the steps
        const Variant& variant = variants[(turn + layer / 2 + first) % variants.size()];
        SCOPED_TRACE(testing::Message() << variant.name << ", layer " << layer);
        const int64_t columns = (kQHeads + (variant.has_keys ? 2 * kKvHeads : 0)) * dim;
        const ops::NewHeads heads = Heads(variant, Random(fast_->num_tokens(), columns), dim);
        ops::NewHeads joined = OnDevice(heads);
        joined.qkv = KernelTest::OnDevice(Random(fast_->num_tokens(), columns)).copy_(heads.qkv);
        ops::NewHeads parts = joined;
        parts.qkv = at::zeros({joined.qkv.size(0), joined.qkv.stride(0)}, joined.qkv.options()).narrow(1, 8, columns);
        parts.qkv.copy_(joined.qkv);
        ops::PrepareHeads(joined, layer, *fast_);
        const at::Tensor q = joined.qkv.narrow(1, 0, kQHeads * dim);
        ASSERT_NO_FATAL_FAILURE(ExpectSame(q, ByOperations(parts, layer + 1)));
        const at::Tensor expected_q = ByReferences(heads, layer);
        // A rotation may take one number from another. Their norms have rounded both.
        const double roundings = dtype() == DType::kFloat32 ? 2e-6 : 1.0 / 256;
        ASSERT_NO_FATAL_FAILURE(ExpectClose(q, expected_q, roundings));
        if (!variant.has_keys) continue;

        ops::AttentionShape shape = {.layer = layer, .q_heads = kQHeads, .head_dim = dim, .scale = 0.1};
        const at::Tensor out = ops::Attention(q, shape, *fast_);
        // Elsewhere a number may be rounded to the next step.
        if (specs_[layer].kv->dtype == DType::kFloat32) {
          ASSERT_NO_FATAL_FAILURE(ExpectClose(out, reference::Attention(expected_q, shape, *reference_), 1e-5));
        }
        shape.layer = layer + 1;
        ASSERT_NO_FATAL_FAILURE(ExpectSame(out, ops::Attention(q, shape, *fast_)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrepareHeadsTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
