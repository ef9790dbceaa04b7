// Layers after the last one that writes to the cache compute only the tokens whose outputs are read.
#include "models/layers/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/layers/linear.h"
#include "models/ops/matmul/packed_weights.h"

namespace berth {
namespace {

constexpr int64_t kVocab = 64;
constexpr int64_t kHidden = kVocab;  // the head shows the stream as it is

// Adds its factor times the token's position, and notes the positions that it saw.
class NotingLayer : public DecoderLayer {
 public:
  NotingLayer(double factor, bool has_keys, std::vector<int64_t>* seen)
      : factor_(factor), has_keys_(has_keys), seen_(seen) {}

  LayerCacheSpec cache_spec() const override {
    if (!has_keys_) return {};
    return {.kv = KvSpec{.kv_heads = 1, .key_dim = 4, .value_dim = 4, .dtype = DType::kFloat32}};
  }
  void Forward(ResidualStream& stream, const StepBatch& batch) const override {
    const at::Tensor positions = batch.device_positions();
    seen_->assign(positions.const_data_ptr<int64_t>(), positions.const_data_ptr<int64_t>() + positions.size(0));
    stream.Add((positions.unsqueeze(1) * factor_).expand({-1, kHidden}).contiguous(), batch.execution());
  }

 private:
  double factor_;
  bool has_keys_;
  std::vector<int64_t>* seen_;
};

struct Kept final : public ScoredLogits, public PooledStates {
  at::Tensor taken;
  void Take(const at::Tensor& rows, int64_t /*first*/) override { taken = rows.clone(); }
};

class DecoderTest : public testing::Test {
 protected:
  DecoderTest() : ids_(kVocab) {
    std::iota(ids_.begin(), ids_.end(), 0);
    DecoderModel::Parts parts;
    parts.embedding = at::arange(kVocab, at::kFloat).unsqueeze(1).expand({kVocab, kHidden}).contiguous();
    parts.layers.push_back(std::make_unique<NotingLayer>(1, /*has_keys=*/true, &seen_[0]));
    parts.layers.push_back(std::make_unique<NotingLayer>(2, /*has_keys=*/false, &seen_[1]));
    parts.layers.push_back(std::make_unique<NotingLayer>(4, /*has_keys=*/false, &seen_[2]));
    LinearWeights head;
    head.weight = at::eye(kVocab, kHidden);
    head.name = "head";
    head.packed = &packed_;
    parts.head.linear = head;
    model_ = std::make_unique<DecoderModel>(std::move(parts));
    const CachePlan plan = *BuildCachePlan(model_->cache_specs(), /*block_tokens=*/16);
    storage_ = *CreateHostStorage(int64_t{1} << 20);
    cache_ = *Cache::Create(plan, storage_.get(), {});
    batch_ = std::make_unique<StepBatch>(plan, storage_->base(), at::kCPU, &execution_);
    batch_->set_readers(&scored_, &pooled_);
  }

  // A new sequence's row, whose tokens are `count` from position 0 on.
  StepRow NewRow(int64_t count) {
    leases_.push_back(std::make_unique<SequenceLease>(cache_->NewLease()));
    EXPECT_TRUE(leases_.back()->Grow(count).ok());
    return {.lease = leases_.back().get(), .tokens = absl::MakeConstSpan(ids_).first(count)};
  }
  at::Tensor Run(std::vector<StepRow> rows) {
    batch_->Fill({.rows = std::move(rows)});
    return model_->Forward(*batch_);
  }
  // What the model gives for the token of this id at position `id`: the id, and seven times the position.
  static at::Tensor Expected(const std::vector<int64_t>& ids) {
    return at::tensor(ids).to(at::kFloat).mul(8).unsqueeze(1).expand({static_cast<int64_t>(ids.size()), kHidden});
  }

  std::vector<int32_t> ids_;
  std::vector<int64_t> seen_[3];
  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<ArenaStorage> storage_;
  std::unique_ptr<Cache> cache_;
  Execution execution_;
  PackedWeights packed_{&execution_};
  std::unique_ptr<StepBatch> batch_;
  std::vector<std::unique_ptr<SequenceLease>> leases_;
  Kept scored_, pooled_;
};

using Positions = std::vector<int64_t>;

TEST_F(DecoderTest, LastLayersWithoutACacheComputeWhatIsSampled) {
  StepRow decoding = NewRow(1), chunk = NewRow(5), prompt = NewRow(9);
  decoding.sample = prompt.sample = true;
  const at::Tensor logits = Run({decoding, chunk, prompt});
  EXPECT_EQ(seen_[0], (Positions{0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(seen_[1], (Positions{0, 8}));
  EXPECT_EQ(seen_[2], (Positions{0, 8}));
  EXPECT_TRUE(at::equal(logits, Expected({0, 8})));
}

TEST_F(DecoderTest, AChunkThatNobodyReadsEndsBeforeThem) {
  EXPECT_FALSE(Run({NewRow(5)}).defined());
  EXPECT_EQ(seen_[0], (Positions{0, 1, 2, 3, 4}));
  EXPECT_TRUE(seen_[1].empty());
}

TEST_F(DecoderTest, AllTokensGoThroughWhereAllAreRead) {
  StepRow first = NewRow(1), second = NewRow(1);
  first.sample = second.sample = true;
  EXPECT_TRUE(at::equal(Run({first, second}), Expected({0, 0})));
  EXPECT_EQ(batch_->outputs().first_layer, -1);
  EXPECT_EQ(seen_[2], (Positions{0, 0}));
}

TEST_F(DecoderTest, ScoredAndPooledTokensAreComputed) {
  StepRow scored = NewRow(6), pooled = NewRow(8);
  scored.scored = absl::MakeConstSpan(ids_).subspan(3, 2);
  scored.first_scored = 2;
  pooled.num_pooled = 3;
  EXPECT_FALSE(Run({scored, pooled}).defined());
  EXPECT_EQ(seen_[1], (Positions{2, 3, 5, 6, 7}));
  EXPECT_TRUE(at::equal(scored_.taken, Expected({2, 3})));
  EXPECT_TRUE(at::equal(pooled_.taken, Expected({5, 6, 7})));
}

}  // namespace
}  // namespace berth
