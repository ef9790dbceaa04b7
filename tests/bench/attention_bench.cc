// Decode attention over a long cache, by how keys and values are stored: one layer of usual sizes, one thread. Run:
//   bazel run -c opt //tests/bench:attention_bench
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/kernels/ops.h"

namespace berth {
namespace {

constexpr int64_t kKvHeads = 8;
constexpr int64_t kDim = 128;
constexpr int64_t kRows = 8;
constexpr int64_t kStep = 256;

// Rows of `tokens` cached tokens each, of a model in bfloat16.
struct Layer {
  Layer(DType stored, int64_t tokens) {
    std::vector<LayerCacheSpec> specs = {
        {.kv = KvSpec{.kv_heads = kKvHeads, .key_dim = kDim, .value_dim = kDim, .dtype = DType::kBFloat16}}};
    if (stored != DType::kBFloat16) QuantiseKv(stored, /*residual_tokens=*/128, &specs);
    plan = *BuildCachePlan(specs, 16);
    storage = *CreateHostStorage(plan.BytesPerToken() * (tokens + 2 * kStep) * kRows + (int64_t{8} << 20));
    cache = *Cache::Create(plan, storage.get(), {});
    batch = std::make_unique<StepBatch>(plan, storage->base(), at::kCPU);
    for (int64_t r = 0; r < kRows; ++r) leases.push_back(cache->NewLease());
    for (int64_t done = 0; done < tokens; done += kStep) Write(kStep);
    Write(1);
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
    const at::Tensor kv = at::randn({kRows * count, kKvHeads * kDim}).to(at::kBFloat16);
    ops::WriteKv(kv, kv, 0, *batch);
  }

  CachePlan plan;
  std::unique_ptr<ArenaStorage> storage;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<StepBatch> batch;
  std::vector<SequenceLease> leases;
  std::vector<int32_t> ids;
};

void Decode(benchmark::State& state, DType stored) {
  at::set_num_threads(1);
  const int64_t tokens = state.range(0);
  const int64_t q_heads = kKvHeads * state.range(1);
  Layer layer(stored, tokens);
  const ops::AttentionShape shape = {.layer = 0, .q_heads = q_heads, .head_dim = kDim, .scale = 0.09};
  const at::Tensor q = at::randn({kRows, q_heads * kDim}).to(at::kBFloat16);
  for (auto _ : state) benchmark::DoNotOptimize(ops::Attention(q, shape, *layer.batch));
  state.SetItemsProcessed(state.iterations() * kRows * tokens);  // cached tokens read
}
#define BERTH_DECODE(stored) \
  BENCHMARK_CAPTURE(Decode, stored, DType::stored)->ArgNames({"tokens", "group"})->ArgsProduct({{512, 8192}, {1, 4}})
BERTH_DECODE(kBFloat16);
BERTH_DECODE(kInt8);
BERTH_DECODE(kInt4);

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
