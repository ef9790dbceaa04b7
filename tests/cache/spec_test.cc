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

// Sequences of 1000 tokens that `arena_bytes` hold.
int64_t SequencesIn(const CachePlan& plan, int64_t arena_bytes) {
  const int64_t units = arena_bytes / plan.groups[0].unit_bytes;
  return units / ((1000 + plan.block_tokens - 1) / plan.block_tokens);
}

TEST(QuantiseKv, Int8HoldsAlmostTwiceTheSequencesOfBfloat16) {
  for (int64_t dim : {64, 128}) {
    const KvSpec kv = {.kv_heads = 8, .key_dim = dim, .value_dim = dim, .dtype = DType::kBFloat16};
    std::vector<LayerCacheSpec> layers(24, {.kv = kv});
    const auto plain = BuildCachePlan(layers, 16);
    QuantiseKv(DType::kInt8, 0, &layers);
    const auto quantised = BuildCachePlan(layers, 16);
    ASSERT_TRUE(plain.ok() && quantised.ok());
    const int64_t arena = int64_t{16} << 30;
    EXPECT_GE(SequencesIn(*quantised, arena), 1.9 * SequencesIn(*plain, arena)) << dim;
    EXPECT_EQ(quantised->BytesPerToken(), 24 * 2 * 8 * (dim + 2));
  }
}

TEST(QuantiseKv, ScalesFollowTheValuesAligned) {
  KvSpec kv = {.kv_heads = 3, .key_dim = 70, .value_dim = 20, .dtype = DType::kInt8};
  KvTensor tensor = LayOutKvTensor(kv, kv.key_dim, 4);
  EXPECT_EQ(tensor.scale_offset, 896);     // 3 * 4 * 70 bytes, rounded up to a multiple of 64
  EXPECT_EQ(tensor.size_bytes - 896, 64);  // 3 * 4 scales of 2 bytes
  kv.dtype = DType::kInt4;
  tensor = LayOutKvTensor(kv, kv.key_dim, 4);
  EXPECT_EQ(tensor.scale_offset, 448);      // 3 * 4 * 35 bytes
  EXPECT_EQ(tensor.size_bytes - 448, 128);  // 3 * 4 * 3 scales: groups of 32, 32 and 6 dimensions
  const auto plan = BuildCachePlan({{.kv = kv}, {.kv = kv}}, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layers[0].value_offset, 576);
  EXPECT_EQ(plan->layers[1].key_offset, 576 + 128 + 64);  // 3 * 4 * 10 bytes, and 3 * 4 scales
  EXPECT_EQ(plan->groups[0].unit_bytes, 2 * plan->layers[1].key_offset);
}

TEST(QuantiseKv, Int4KeepsTheNewestTokensInAGroupOfTheirOwn) {
  KvSpec sliding = kKv, narrow = kKv, chunked = kKv;
  sliding.window = 100;
  narrow.window = 16;
  chunked.chunk = 99;
  std::vector<LayerCacheSpec> layers = {
      {.kv = kKv}, {.kv = sliding}, {.kv = narrow}, {.kv = chunked}, {.kv = kKv, .states = {kConv}, .cross = kKv}};
  QuantiseKv(DType::kInt4, 16, &layers);
  EXPECT_EQ(layers[2].kv, narrow);  // its window is no longer than what stays in full precision
  EXPECT_FALSE(layers[2].recent.has_value());
  EXPECT_EQ(layers[4].cross, kKv);
  EXPECT_EQ(layers[4].states, std::vector<StateSpec>{kConv});
  for (int i : {0, 1, 3, 4}) {
    EXPECT_EQ(layers[i].kv->dtype, DType::kInt4);
    EXPECT_EQ(layers[i].recent, narrow);
  }
  const auto plan = BuildCachePlan(layers, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const CacheGroup& recent = plan->groups[plan->layers[0].recent_group];
  EXPECT_EQ(recent.kind, CacheKind::kSliding);
  EXPECT_EQ(recent.layers, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(plan->layers[2].recent_group, -1);
  EXPECT_EQ(plan->layers[2].kv_group, plan->layers[0].recent_group);
  EXPECT_EQ(plan->groups[plan->layers[1].kv_group].kv.window, 100);

  layers = {{.kv = kKv}};
  QuantiseKv(DType::kInt4, 0, &layers);
  EXPECT_FALSE(layers[0].recent.has_value());
}

TEST(LimitAttention, LeavesSmallerWindowsAndChunksAsTheyAre) {
  KvSpec narrow = kKv, equal = kKv, wide = kKv, chunked = kKv, limited = kKv;
  narrow.window = 99;
  equal.window = 100;
  wide.window = 101;
  chunked.chunk = 1000;
  limited.window = 100;
  limited.sink_tokens = 4;
  std::vector<LayerCacheSpec> layers = {{.kv = kKv, .cross = kKv}, {.kv = narrow},     {.kv = equal}, {.kv = wide},
                                        {.kv = chunked},           {.states = {kConv}}};
  LimitAttention(100, 4, &layers);
  EXPECT_EQ(layers[0].kv, limited);
  EXPECT_EQ(layers[0].cross, kKv);
  EXPECT_EQ(layers[1].kv, narrow);
  EXPECT_EQ(layers[2].kv, limited);
  EXPECT_EQ(layers[3].kv, limited);
  EXPECT_EQ(layers[4].kv, chunked);
  EXPECT_FALSE(layers[5].kv.has_value());
  QuantiseKv(DType::kInt4, 16, &layers);
  EXPECT_EQ(layers[0].kv->sink_tokens, 4);
  EXPECT_EQ(layers[0].recent->sink_tokens, 0) << "the newest tokens are no sinks";
  const auto plan = BuildCachePlan(layers, 16);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->groups[plan->layers[0].kv_group].kind, CacheKind::kSliding);
}

TEST(KvSpec, CountsTheBlocksBetweenSinksAndWindow) {
  KvSpec kv = kKv;
  kv.window = 10;
  EXPECT_EQ(kv.SinkBlocks(4), 0);
  EXPECT_EQ(kv.ExpiredBlocks(21, 4), 3) << "12 and later are seen";
  kv.sink_tokens = 5;
  EXPECT_EQ(kv.SinkBlocks(4), 2);
  EXPECT_EQ(kv.ExpiredBlocks(21, 4), 1);
  EXPECT_EQ(kv.ExpiredBlocks(16, 4), 0) << "the window has not left the sinks";
}

TEST(KvSpec, NothingLeavesBeforeStaysUntil) {
  for (const KvSpec& kv : {KvSpec{}, KvSpec{.window = 1}, KvSpec{.window = 9}, KvSpec{.window = 16, .sink_tokens = 5},
                           KvSpec{.chunk = 7}, KvSpec{.chunk = 8}}) {
    for (int64_t position = 0; position < 100; ++position) {
      const int64_t until = kv.ExpiryStableUntil(position, 4);
      ASSERT_GT(until, position);
      for (int64_t later = position; later < std::min<int64_t>(until, 200); ++later) {
        ASSERT_EQ(kv.ExpiredBlocks(later, 4), kv.ExpiredBlocks(position, 4)) << position << " to " << later;
      }
    }
  }
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
  KvSpec quantised = kKv;
  quantised.dtype = DType::kInt8;
  EXPECT_EQ(BuildCachePlan({{.cross = quantised}}, 16).status().message(),
            "layer 0: cache int8 is of a layer's own keys and values only");
  EXPECT_EQ(BuildCachePlan({{.recent = sliding}}, 16).status().message(),
            "layer 0: cache recent is a window over a layer's keys and values");
  KvSpec sinks = kKv;
  sinks.sink_tokens = 4;
  EXPECT_EQ(BuildCachePlan({{.kv = sinks}}, 16).status().message(), "layer 0: cache sink_tokens is 4 without a window");
  EXPECT_FALSE(BuildCachePlan({{}, {}}, 16).ok());
  const StateSpec vast = {.name = "recurrent", .shape = {1 << 14, 1 << 20, 1 << 20}};
  EXPECT_EQ(BuildCachePlan(std::vector<LayerCacheSpec>(4096, {.states = {vast}}), 16).status().message(),
            "layer 0: cache recurrent has 1.80144e+16 numbers, more than 4294967296");
  KvSpec wide = kKv;
  wide.kv_heads = wide.key_dim = wide.value_dim = (int64_t{1} << 31) - 1;
  EXPECT_EQ(BuildCachePlan({{.kv = wide}}, 1024).status().message(),
            "layer 0: cache block has 9.44473e+21 numbers, more than 4294967296");
}

}  // namespace
}  // namespace berth
