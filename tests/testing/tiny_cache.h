// A cache of a few hundred bytes per sequence, so that a test fills it with a few tokens.
#ifndef BERTH_TESTS_TESTING_TINY_CACHE_H_
#define BERTH_TESTS_TESTING_TINY_CACHE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "cache/cache.h"
#include "cache/spec.h"
#include "cache/storage.h"

namespace berth {

// Units of 128 bytes per 4 tokens, and of 64 per state.
inline constexpr int64_t kTinyBlockTokens = 4;
inline LayerCacheSpec StaticLayer() { return {.kv = KvSpec{.kv_heads = 1, .key_dim = 1, .value_dim = 1}}; }
inline LayerCacheSpec OtherStaticLayer() { return {.kv = KvSpec{.kv_heads = 1, .key_dim = 2, .value_dim = 2}}; }
inline LayerCacheSpec SlidingLayer(int64_t window, int64_t sink_tokens = 0) {
  return {.kv = KvSpec{.kv_heads = 1, .key_dim = 1, .value_dim = 1, .window = window, .sink_tokens = sink_tokens}};
}
inline LayerCacheSpec ChunkedLayer(int64_t chunk) {
  return {.kv = KvSpec{.kv_heads = 1, .key_dim = 1, .value_dim = 1, .chunk = chunk}};
}
inline LayerCacheSpec CrossLayer() {
  return {.kv = KvSpec{.kv_heads = 1, .key_dim = 1, .value_dim = 1},
          .cross = KvSpec{.kv_heads = 1, .key_dim = 1, .value_dim = 1}};
}
inline LayerCacheSpec RecurrentLayer() { return {.states = {{.name = "recurrent", .shape = {4}}}}; }
inline LayerCacheSpec PromptAwareLayer() {
  return {.states = {{.name = "recurrent", .shape = {4}, .prompt_dependent = true}}};
}

// One layer of every kind but the encoder's.
inline std::vector<LayerCacheSpec> HybridLayers() {
  return {StaticLayer(), SlidingLayer(6), RecurrentLayer(), OtherStaticLayer()};
}

// These layers with states of 128 numbers: 512 bytes, and 192 in a checkpoint.
inline std::vector<LayerCacheSpec> WithWideStates(std::vector<LayerCacheSpec> layers) {
  for (LayerCacheSpec& layer : layers) {
    for (StateSpec& state : layer.states) state.shape = {128};
  }
  return layers;
}

// What a test writes into a state of 64 numbers or more, so that it survives quantising: each bit as a sign.
inline void SetDigest(uint64_t digest, std::byte* state) {
  for (int i = 0; i < 64; ++i) {
    const float number = (digest >> i & 1) != 0 ? -1.5f : 1.5f;
    std::memcpy(state + i * sizeof(number), &number, sizeof(number));
  }
}
// 0 of a state that holds anything else.
inline uint64_t GetDigest(const std::byte* state) {
  uint64_t digest = 0;
  for (int i = 0; i < 64; ++i) {
    float number = 0;
    std::memcpy(&number, state + i * sizeof(number), sizeof(number));
    if (!(std::abs(number) > 1.49f && std::abs(number) < 1.51f)) return 0;
    if (number < 0) digest |= uint64_t{1} << i;
  }
  return digest;
}

struct TinyCache {
  // An arena of `size` times `piece_bytes`: by default two blocks, or four states, apiece. `checkpoints`: quantised.
  TinyCache(const std::vector<LayerCacheSpec>& layers, int64_t size, int64_t piece_bytes = 256,
            bool checkpoints = false, double state_share = 1) {
    auto plan = BuildCachePlan(layers, kTinyBlockTokens);
    if (!plan.ok()) ABSL_RAW_LOG(FATAL, "%s", plan.status().ToString().c_str());
    if (checkpoints) QuantiseCheckpoints(layers, &*plan);
    auto made_storage = CreateHostStorage(size * piece_bytes + 36);
    if (!made_storage.ok()) ABSL_RAW_LOG(FATAL, "%s", made_storage.status().ToString().c_str());
    storage = *std::move(made_storage);
    auto made_cache = Cache::Create(*plan, storage.get(), {.poison_returned_units = true, .state_share = state_share});
    if (!made_cache.ok()) ABSL_RAW_LOG(FATAL, "%s", made_cache.status().ToString().c_str());
    cache = *std::move(made_cache);
  }

  std::unique_ptr<ArenaStorage> storage;
  std::unique_ptr<Cache> cache;
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_TINY_CACHE_H_
