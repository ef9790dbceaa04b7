#include "cache/spec.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

const KvSpec kKv = {.kv_heads = 3, .key_dim = 5, .value_dim = 7, .dtype = DType::kFloat32, .window = 0};
const StateSpec kConv = {.name = "conv", .shape = {11, 3}, .dtype = DType::kBFloat16};

TEST(BuildCachePlan, EqualNeedsFormOneGroup) {
  KvSpec sliding = kKv;
  sliding.window = 9;
  const auto plan = BuildCachePlan({{.kv = kKv}, {.kv = sliding}, {}, {.kv = kKv, .states = {kConv}}}, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->groups.size(), 3u);
  EXPECT_EQ(plan->groups[0].kind, CacheKind::kStatic);
  EXPECT_EQ(plan->groups[0].layers, (std::vector<int>{0, 3}));
  EXPECT_EQ(plan->groups[1].kind, CacheKind::kSliding);
  EXPECT_EQ(plan->groups[2].kind, CacheKind::kRecurrent);
  EXPECT_EQ(plan->layers[2].kv_group, -1);
  EXPECT_EQ(plan->layers[3].kv_group, 0);
  EXPECT_EQ(plan->layers[3].state_group, 2);
}

TEST(BuildCachePlan, TensorsOfAUnitAreAlignedAndDoNotOverlap) {
  const auto plan = BuildCachePlan({{.kv = kKv, .states = {kConv}}, {.kv = kKv, .states = {kConv, kConv}}}, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t key_bytes = 4 * 3 * 5 * 4;    // tokens * heads * dim * float32
  const int64_t value_bytes = 4 * 3 * 7 * 4;  // the same with value_dim
  int64_t end = 0;
  for (const LayerCacheSlot& layer : plan->layers) {
    EXPECT_GE(layer.key_offset, end);
    EXPECT_EQ(layer.key_offset % 64, 0);
    EXPECT_GE(layer.value_offset, layer.key_offset + key_bytes);
    EXPECT_EQ(layer.value_offset % 64, 0);
    end = layer.value_offset + value_bytes;
  }
  EXPECT_GE(plan->groups[0].unit_bytes, end);
  EXPECT_EQ(plan->layers[1].state_offsets, (std::vector<int64_t>{128, 256}));  // 11 * 3 * 2 bytes, rounded up to 128
}

TEST(BuildCachePlan, CrossAttentionHasAGroupOfItsOwn) {
  const auto plan = BuildCachePlan({{.kv = kKv, .cross = kKv}, {.kv = kKv, .cross = kKv}}, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->groups.size(), 2u);
  EXPECT_EQ(plan->groups[0].kind, CacheKind::kStatic);
  EXPECT_EQ(plan->groups[1].kind, CacheKind::kCross);
  EXPECT_EQ(plan->groups[1].layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan->groups[1].unit_bytes, plan->groups[0].unit_bytes);
  EXPECT_EQ(plan->layers[1].cross_group, 1);
  EXPECT_EQ(plan->layers[1].cross_key_offset, plan->layers[1].key_offset);
  EXPECT_EQ(plan->layers[1].cross_value_offset, plan->layers[1].value_offset);
  EXPECT_EQ(plan->BytesPerToken(), plan->groups[0].unit_bytes / 4);
  EXPECT_EQ(plan->CrossBytesPerToken(), plan->groups[1].unit_bytes / 4);
  EXPECT_TRUE(plan->has_cross());
  EXPECT_FALSE(BuildCachePlan({{.kv = kKv}}, 4)->has_cross());
}

TEST(BuildCachePlan, NamesWhatIsWrong) {
  KvSpec bad = kKv;
  bad.value_dim = -1;
  EXPECT_EQ(BuildCachePlan({{.kv = bad}}, 16).status().message(), "layer 0: cache value_dim is -1, outside [1, 2^31)");
  EXPECT_EQ(BuildCachePlan({{.kv = kKv}}, 12).status().message(),
            "block_tokens is 12, not a power of two in [1, 1024]");
  KvSpec sliding = kKv;
  sliding.window = 9;
  EXPECT_EQ(BuildCachePlan({{.cross = sliding}}, 16).status().message(),
            "layer 0: cache cross has a window of 9; an encoder's output is seen whole");
  EXPECT_FALSE(BuildCachePlan({{}, {}}, 16).ok());
}

}  // namespace
}  // namespace berth
