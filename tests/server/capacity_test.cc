#include "server/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cache/cache.h"
#include "cache/storage.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

// Attention, a window, a recurrence, and a window with sinks.
std::vector<LayerCacheSpec> HybridLayers() {
  std::vector<LayerCacheSpec> layers(7);
  for (int i = 0; i < 2; ++i) layers[i].kv = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  for (int i = 2; i < 4; ++i) layers[i].kv = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64, .window = 100};
  for (int i = 4; i < 6; ++i) layers[i].states = {{.name = "recurrent", .shape = {16, 128}}};
  layers[6].kv = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64, .window = 300, .sink_tokens = 20};
  return layers;
}
CachePlan HybridPlan() { return *BuildCachePlan(HybridLayers(), 16); }

// Self- and cross-attention of the same shape in every layer.
CachePlan EncoderDecoderPlan() {
  constexpr KvSpec kv = {.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  return *BuildCachePlan({{.kv = kv, .cross = kv}, {.kv = kv, .cross = kv}, {.kv = kv, .cross = kv}}, 16);
}

constexpr SequenceShape kShape = {.num_tokens = 1000, .step_tokens = 64};

TEST(CapacityTest, TheUsersLengthWinsAndTheDefaultIsBounded) {
  ModelInfo model;
  EXPECT_EQ(MaxSequenceTokens(Scheduler::Options{}, model), 32768);
  model.max_positions = 4096;
  EXPECT_EQ(MaxSequenceTokens(Scheduler::Options{}, model), 4096);
  model.max_positions = 10'000'000;
  EXPECT_EQ(MaxSequenceTokens(Scheduler::Options{}, model), 32768);
  EXPECT_EQ(MaxSequenceTokens(Scheduler::Options{.max_sequence_tokens = 1'000'000}, model), 1'000'000);
  model.max_positions = 512;
  EXPECT_EQ(MaxSequenceTokens(Scheduler::Options{.max_sequence_tokens = 1000}, model), 1000);
}

TEST(CapacityTest, AStepHoldsWhatAnEncoderReads) {
  const auto step_tokens = [](const CachePlan& plan, int64_t positions, Config config) {
    ModelInfo model;
    model.max_positions = positions;
    SetEncoderDefaults(plan, model, &config);
    return config.engine.scheduler.max_step_tokens;
  };
  Config config;
  SetDeviceDefaults(/*on_gpu=*/false, &config);
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 1024, config), 1025);
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 0, config), 1025) << "positions are relative";
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 16384, config), 1025);
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 512, config), 513);
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 100, config), 512);
  EXPECT_EQ(step_tokens(HybridPlan(), 1024, config), 512) << "no encoder";
  config.engine.scheduler.max_sequence_tokens = 800;
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 1024, config), 801);
  config.max_step_tokens = 300;
  SetDeviceDefaults(/*on_gpu=*/false, &config);
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 1024, config), 300) << "the user's number wins";
  config.max_step_tokens.reset();
  SetDeviceDefaults(/*on_gpu=*/true, &config);
  EXPECT_EQ(step_tokens(EncoderDecoderPlan(), 1024, config), 4096);
}

TEST(CapacityTest, AgreesWithTheCacheToTheByte) {
  CachePlan plan = HybridPlan();
  for (int64_t tokens : {1, 2, 15, 16, 17, 100, 101, 1000, 5000}) {
    if (tokens == 101) QuantiseCheckpoints(HybridLayers(), &plan);
    if (tokens == 1000) plan = EncoderDecoderPlan();
    const int64_t bytes = ArenaBytesFor(plan, 1, {.num_tokens = tokens, .step_tokens = 64, .num_encoder_tokens = 333});
    for (const auto& [arena, fits] : {std::pair(bytes, true), std::pair(bytes - 64, false)}) {
      auto storage = CreateHostStorage(arena);
      ASSERT_TRUE(storage.ok()) << storage.status();
      auto cache = Cache::Create(plan, storage->get(), {});
      if (!cache.ok()) {
        EXPECT_FALSE(fits) << tokens;
        continue;
      }
      EXPECT_EQ((*cache)->CanFit(tokens, 64, 333), fits) << tokens;
    }
  }
}

TEST(CapacityTest, SequencesInIsTheInverse) {
  const CachePlan plan = HybridPlan();
  for (int64_t n : {1, 2, 7, 64}) {
    const int64_t bytes = ArenaBytesFor(plan, n, kShape);
    EXPECT_GE(SequencesIn(plan, bytes, kShape, 1000), n);
    EXPECT_LT(SequencesIn(plan, bytes - 1, kShape, 1000), n);
    EXPECT_EQ(SequencesIn(plan, bytes, kShape, n), n);
  }
  EXPECT_EQ(SequencesIn(plan, 0, kShape, 64), 0);
}

TEST(CapacityTest, HugeSizesSaturate) {
  EXPECT_EQ(ArenaBytesFor(HybridPlan(), int64_t{1} << 40, {.num_tokens = int64_t{1} << 40, .step_tokens = 64}),
            int64_t{1} << 60);
}

TEST(CapacityTest, AutoIsAQuarterWithinWhatIsOfUse) {
  const CachePlan plan = HybridPlan();
  Config config;
  const int64_t one = ArenaBytesFor(plan, 1, LongestSequence(config.engine.scheduler, 4096));
  const int64_t all =
      ArenaBytesFor(plan, config.engine.scheduler.max_running, LongestSequence(config.engine.scheduler, 4096));
  EXPECT_EQ(*ChooseArenaBytes(config, plan, 4096, 1000 * kGiB), all);
  EXPECT_EQ(*ChooseArenaBytes(config, plan, 4096, one), one);
  const int64_t quarter = *ChooseArenaBytes(config, plan, 4096, 2 * all + 1);
  EXPECT_EQ(quarter % 4096, 0);
  EXPECT_LE(quarter, all / 2);
  EXPECT_GT(quarter, all / 2 - 4096);

  const auto none = ChooseArenaBytes(config, plan, 4096, one - 1);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("4096 tokens"));

  config.arena_bytes = 12345;
  EXPECT_EQ(*ChooseArenaBytes(config, plan, 4096, 0), 12345);
  EXPECT_EQ(*ChooseArenaBytes(config, plan, 4096, 12345), 12345);
  config.arena_bytes = 3 * kGiB;
  EXPECT_EQ(ChooseArenaBytes(config, plan, 4096, kGiB).status(),
            absl::ResourceExhaustedError("--arena: 3 GiB is more than the memory available beside the weights, 1 GiB"));
}

TEST(CapacityTest, OfAGpuAReserveIsKept) {
  EXPECT_EQ(GpuReserveBytes(24 * kGiB), 2 * kGiB);
  EXPECT_EQ(GpuReserveBytes(100 * kGiB), 6 * kGiB);
}

TEST(CapacityTest, OfAGpuAutoIsAllButTheReserve) {
  const CachePlan plan = HybridPlan();
  Config config;
  const DeviceMemory memory = {.free_bytes = 60 * kGiB + 5, .total_bytes = 100 * kGiB};
  EXPECT_EQ(*ChooseGpuArenaBytes(config, plan, 4096, memory), 54 * kGiB);

  const auto none = ChooseGpuArenaBytes(config, plan, 4096, {.free_bytes = 6 * kGiB, .total_bytes = 100 * kGiB});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("The weights leave 6 GiB of the GPU's memory, and 6"));
  config.arena_bytes = 12345;
  EXPECT_EQ(*ChooseGpuArenaBytes(config, plan, 4096, {}), 12345);
}

TEST(CapacityTest, AGpuWithoutFreeMemoryIsRefusedBeforeTheLoad) {
  Config config;
  EXPECT_TRUE(CheckFreeGpuMemory(config, {.free_bytes = 7 * kGiB, .total_bytes = 100 * kGiB}).ok());
  EXPECT_EQ(CheckFreeGpuMemory(config, {.free_bytes = 5 * kGiB, .total_bytes = 100 * kGiB}).message(),
            "--arena: of the GPU's 100 GiB only 5 GiB are free, and auto keeps 6 GiB for steps; end what else uses the "
            "GPU, or set --arena");
  config.arena_bytes = kGiB;
  EXPECT_TRUE(CheckFreeGpuMemory(config, {.free_bytes = 5 * kGiB, .total_bytes = 100 * kGiB}).ok());
}

TEST(CapacityTest, DescribesEachGroupAndTheWhole) {
  const std::vector<std::string> lines = DescribeCache(HybridPlan(), kGiB, 4096, Scheduler::Options{});
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_THAT(lines[0], HasSubstr("static, 2 layers, float32, 2 KiB per token in blocks of 16"));
  EXPECT_THAT(lines[1], HasSubstr("sliding, 2 layers, float32, window of 100 tokens"));
  EXPECT_THAT(lines[2], HasSubstr("recurrent, 2 layers, 16 KiB per sequence"));
  EXPECT_THAT(lines[3], HasSubstr("sliding, 1 layer, float32, window of 300 tokens and the first 20, 1 KiB"));
  EXPECT_THAT(lines[4], HasSubstr("cache arena: 1 GiB; a sequence of 4096 tokens takes"));
  EXPECT_EQ(lines[5], "cache: 5120 bytes per token, 2048 past the windows, 16384 bytes per sequence");
  // No sequence is longer than 4096 tokens.
  EXPECT_THAT(lines[6], StartsWith("sequences of 4096 tokens: "));
}

TEST(CapacityTest, CountsSequencesOfEqualLengthWhateverIsAllowed) {
  const CachePlan plan = *BuildCachePlan({{.kv = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64}}}, 16);
  const std::vector<std::string> lines = DescribeCache(plan, kGiB, 32768, Scheduler::Options{.max_running = 2});
  EXPECT_EQ(lines[2], "cache: 1024 bytes per token, 0 bytes per sequence");
  EXPECT_EQ(lines[3], "sequences of 8000 tokens: 131 fit at once, each takes 7.8 MiB (8192000 bytes)");
}

TEST(CapacityTest, TheLongestSequenceIsTheCachesOwn) {
  for (const CachePlan& plan : {HybridPlan(), EncoderDecoderPlan()}) {
    for (int64_t arena : {1 << 18, 1 << 20, 3 << 20, (5 << 20) + 4096}) {
      const auto storage = CreateHostStorage(arena);
      ASSERT_TRUE(storage.ok()) << storage.status();
      const auto cache = Cache::Create(plan, storage->get(), {});
      ASSERT_TRUE(cache.ok()) << cache.status();
      const Scheduler::Options options;
      EXPECT_EQ(LongestSequenceIn(plan, arena, options, 100000),
                (*cache)->MaxSequenceTokens(options.prefill_chunk_tokens, 100000, options.max_step_tokens - 1))
          << arena;
    }
  }
}

TEST(CapacityTest, CountsTheScalesOfQuantisedKeysAndValues) {
  std::vector<LayerCacheSpec> layers(2, {.kv = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64}});
  QuantiseKv(DType::kInt8, 0, &layers);
  const std::vector<std::string> lines = DescribeCache(*BuildCachePlan(layers, 16), kGiB, 4096, Scheduler::Options{});
  // 2 layers * 2 tensors * 2 heads * (64 + 2) bytes.
  EXPECT_THAT(lines[0], HasSubstr("static, 2 layers, int8 with scales, 528 B per token"));
}

TEST(CapacityTest, DescribesQuantisedCheckpoints) {
  CachePlan plan = HybridPlan();
  QuantiseCheckpoints(HybridLayers(), &plan);
  const std::vector<std::string> lines = DescribeCache(plan, kGiB, 4096, Scheduler::Options{});
  // 2 layers * (16 * 128 numbers + 2 bytes for each 32).
  EXPECT_THAT(lines[4], HasSubstr("checkpoint, 2 layers, int8 with scales, 4.2 KiB per checkpoint; the whole arena"));
  EXPECT_EQ(lines.back(), DescribeCache(HybridPlan(), kGiB, 4096, Scheduler::Options{}).back())
      << "sequences take what they took";
}

TEST(CapacityTest, DescribesAnEncodersShare) {
  const std::vector<std::string> lines =
      DescribeCache(EncoderDecoderPlan(), kGiB, 4096, Scheduler::Options{.max_step_tokens = 801});
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[1], HasSubstr("cross, 3 layers, float32, 3 KiB per encoder token in blocks of 16"));
  EXPECT_THAT(lines[2], HasSubstr("a sequence of 4096 tokens and 800 encoder tokens takes"));
  EXPECT_EQ(lines[3], "cache: 3072 bytes per token, 3072 bytes per encoder token, 0 bytes per sequence");
}

}  // namespace
}  // namespace berth
