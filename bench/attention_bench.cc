// Attention over a long cache, by how keys and values are stored: of decode, and of a prompt's last chunk. One layer,
// one thread. Run:
//   bazel run -c opt //bench:attention_bench
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/ops/paged_attention/paged_attention.h"

namespace berth {
namespace {

constexpr int64_t kStep = 64;
constexpr int64_t kKvHeads = 8;

// `rows` rows of `tokens` cached tokens each, and a step of `step_tokens` more, of a model in bfloat16, or float32 if
// that is what is stored.
struct Layer {
  Layer(DType stored, int64_t rows, int64_t tokens, int64_t step_tokens, int64_t dim)
      : type(stored == DType::kFloat32 ? at::kFloat : at::kBFloat16), dim(dim) {
    const DType dtype = stored == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    std::vector<LayerCacheSpec> specs = {
        {.kv = KvSpec{.kv_heads = kKvHeads, .key_dim = dim, .value_dim = dim, .dtype = dtype}}};
    if (stored != dtype) QuantiseKv(stored, /*residual_tokens=*/128, &specs);
    plan = *BuildCachePlan(specs, 16);
    storage = *CreateHostStorage(plan.BytesPerToken() * (tokens + step_tokens + 2 * kStep) * rows + (int64_t{8} << 20));
    cache = *Cache::Create(plan, storage.get(), {});
    batch = std::make_unique<StepBatch>(plan, storage->base(), at::kCPU, &execution);
    for (int64_t r = 0; r < rows; ++r) leases.push_back(cache->NewLease());
    for (int64_t done = 0; done < tokens; done += kStep) Write(kStep);
    Write(step_tokens);
  }

  void Write(int64_t count) {
    ids.assign(count, 1);
    StepPlan step;
    for (SequenceLease& lease : leases) {
      const int64_t start = lease.num_tokens();
      if (!lease.Grow(count).ok()) std::abort();
      step.rows.push_back({.lease = &lease, .tokens = ids, .start = start});
    }
    batch->Fill(step);
    const at::Tensor kv = at::randn({static_cast<int64_t>(leases.size()) * count, kKvHeads * dim}).to(type);
    ops::WriteKv(kv, kv, 0, *batch);
  }

  at::ScalarType type;
  int64_t dim;
  CachePlan plan;
  std::unique_ptr<ArenaStorage> storage;
  std::unique_ptr<Cache> cache;
  Execution execution;
  std::unique_ptr<StepBatch> batch;
  std::vector<SequenceLease> leases;
  std::vector<int32_t> ids;
};

void Decode(benchmark::State& state, DType stored) {
  constexpr int64_t kRows = 8;
  at::set_num_threads(1);
  const int64_t tokens = state.range(0);
  const int64_t q_heads = kKvHeads * state.range(1);
  const int64_t dim = state.range(2);
  Layer layer(stored, kRows, tokens, /*step_tokens=*/1, dim);
  const ops::AttentionShape shape = {.layer = 0, .q_heads = q_heads, .head_dim = dim, .scale = 0.09};
  const at::Tensor q = at::randn({kRows, q_heads * dim}).to(layer.type);
  for (auto _ : state) benchmark::DoNotOptimize(ops::Attention(q, shape, *layer.batch));
  state.SetItemsProcessed(state.iterations() * kRows * tokens);  // cached tokens read
}
#define BERTH_DECODE(stored)                                \
  BENCHMARK_CAPTURE(Decode, stored, DType::stored)          \
      ->ArgNames({"tokens", "group", "dim"})                \
      ->ArgsProduct({{512, 8192, 32768}, {1, 4, 8}, {128}}) \
      ->ArgsProduct({{8192, 32768}, {2, 4, 6, 8}, {64}})    \
      ->Args({256, 2, 32})                                  \
      ->Args({256, 3, 64})
BERTH_DECODE(kFloat32);
BERTH_DECODE(kBFloat16);
BERTH_DECODE(kInt8);
BERTH_DECODE(kInt4);

// The last chunk of a prompt of `tokens` tokens.
void Prefill(benchmark::State& state, DType stored) {
  constexpr int64_t kChunk = 512;
  at::set_num_threads(1);
  const int64_t tokens = state.range(0);
  const int64_t q_heads = kKvHeads * state.range(1);
  const int64_t dim = state.range(2);
  Layer layer(stored, /*rows=*/1, tokens - kChunk, kChunk, dim);
  const ops::AttentionShape shape = {.layer = 0, .q_heads = q_heads, .head_dim = dim, .scale = 0.09};
  const at::Tensor q = at::randn({kChunk, q_heads * dim}).to(layer.type);
  for (auto _ : state) benchmark::DoNotOptimize(ops::Attention(q, shape, *layer.batch));
  const int64_t seen = kChunk * (tokens - kChunk) + kChunk * (kChunk + 1) / 2;
  state.counters["flop/s"] =
      benchmark::Counter(static_cast<double>(4 * seen * q_heads * dim), benchmark::Counter::kIsIterationInvariantRate);
}
#define BERTH_PREFILL(stored)                       \
  BENCHMARK_CAPTURE(Prefill, stored, DType::stored) \
      ->ArgNames({"tokens", "group", "dim"})        \
      ->ArgsProduct({{512, 2048, 8192, 32768}, {4}, {128}})
BERTH_PREFILL(kFloat32);
BERTH_PREFILL(kBFloat16);
BERTH_PREFILL(kInt8);

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
