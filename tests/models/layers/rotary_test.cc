#include "models/layers/rotary.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"

namespace berth {
namespace {

constexpr int64_t kHeadDim = 20;
constexpr int64_t kRows[] = {3, 70, 131070, 1'000'000};  // where the rows' tokens start

class RotaryTest : public ::testing::Test {
 protected:
  RotaryTest() {
    const KvSpec kv = {.kv_heads = 1, .key_dim = 4, .value_dim = 4, .window = 8};
    const CachePlan plan = *BuildCachePlan({{.kv = kv}}, /*block_tokens=*/1024);
    storage_ = *CreateHostStorage(int64_t{1} << 20);
    cache_ = *Cache::Create(plan, storage_.get(), {});
    batch_ = std::make_unique<StepBatch>(plan, storage_->base(), at::kCPU, &execution_);
    tokens_.assign(kTokens, 1);
    at::manual_seed(15);
  }

  // x rotated as the tokens from each of `starts` on, kTokens each.
  at::Tensor Rotate(RotaryEmbedding& rotary, const at::Tensor& x, const std::vector<int64_t>& starts) {
    std::vector<SequenceLease> leases;
    for (int64_t start : starts) {
      leases.push_back(cache_->NewLease());
      for (int64_t left = start; left > 0; left -= 1024)
        EXPECT_TRUE(leases.back().Grow(std::min<int64_t>(left, 1024)).ok());
      EXPECT_TRUE(leases.back().Grow(kTokens).ok());
    }
    StepPlan plan;
    for (size_t r = 0; r < starts.size(); ++r) {
      plan.rows.push_back({.lease = &leases[r],
                           .tokens = tokens_,
                           .start = starts[r],
                           .prompt_length = 5,
                           .sequence_length = starts[r] + kTokens});
      plan.num_tokens += kTokens;
    }
    batch_->Fill(plan);
    at::Tensor out = x.clone();
    ops::Rotary(out, rotary.Of(*batch_), kHeadDim, execution_);
    return out;
  }

  static constexpr int64_t kTokens = 2;
  std::unique_ptr<ArenaStorage> storage_;
  std::unique_ptr<Cache> cache_;
  Execution execution_;
  std::unique_ptr<StepBatch> batch_;
  std::vector<int32_t> tokens_;
};

// Far positions are computed for their step, near ones looked up: which of the two depends on a token's neighbours.
TEST_F(RotaryTest, NeighboursFarAwayDoNotChangeTheBits) {
  RopeConfig plain;
  RopeConfig longrope = {.type = "longrope", .original_max_positions = 64};
  for (int64_t i = 0; i < kHeadDim / 2; ++i) {
    longrope.short_factor.push_back(1.0 + 0.1 * static_cast<double>(i));
    longrope.long_factor.push_back(1.5 + static_cast<double>(i));
  }
  for (const RopeConfig& rope : {plain, longrope}) {
    RotaryEmbedding rotary(rope, kHeadDim, at::kCPU);
    const at::Tensor x = at::randn({4 * kTokens, 3 * kHeadDim});
    const at::Tensor together = Rotate(rotary, x, {kRows, kRows + 4});
    for (int64_t r = 0; r < 4; ++r) {
      const at::Tensor own = x.narrow(0, r * kTokens, kTokens);
      const at::Tensor alone = Rotate(rotary, own, {kRows[r]});
      EXPECT_TRUE(at::equal(alone, together.narrow(0, r * kTokens, kTokens))) << rope.type << " from " << kRows[r];
      EXPECT_FALSE(at::equal(alone, own));
    }
    // Twice the same step's positions, then others.
    EXPECT_TRUE(at::equal(Rotate(rotary, x, {kRows, kRows + 4}), together));
  }
}

TEST_F(RotaryTest, OnlyYarnAndLongropeScaleTheirAngles) {
  const at::Tensor x = at::randn({kTokens, 3 * kHeadDim});
  for (const char* type : {"default", "linear", "yarn"}) {
    const RopeConfig plain = {.type = type, .factor = 2, .max_positions = 128, .original_max_positions = 64};
    RopeConfig scaled = plain;
    scaled.attention_factor = 1.5;
    RotaryEmbedding one(plain, kHeadDim, at::kCPU), other(scaled, kHeadDim, at::kCPU);
    EXPECT_EQ(at::equal(Rotate(one, x, {3}), Rotate(other, x, {3})), std::string(type) != "yarn") << type;
  }
}

}  // namespace
}  // namespace berth
