// The recurrences' prefill and decode on one layer of usual sizes, one thread. Run:
//   bazel run -c opt //bench:mamba_bench
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/ops/mamba/mamba.h"

namespace berth {
namespace {

// One layer with one sequence, past its first token.
struct Layer {
  explicit Layer(std::vector<int64_t> state) : plan(*BuildCachePlan({{.states = {{.shape = state}}}}, 16)) {
    storage = *CreateHostStorage(int64_t{64} << 20);
    cache = *Cache::Create(plan, storage.get(), {});
    batch = std::make_unique<StepBatch>(plan, storage->base(), at::kCPU, &execution);
    lease = std::make_unique<SequenceLease>(cache->NewLease());
  }

  void Fill(int64_t tokens) {
    ids.assign(tokens, 1);
    StepPlan step;
    const int64_t start = lease->num_tokens();
    if (!lease->Grow(tokens).ok()) std::abort();
    step.rows.push_back({.lease = lease.get(), .tokens = ids, .start = start});
    step.num_tokens = tokens;
    batch->Fill(step);
  }

  CachePlan plan;
  std::unique_ptr<ArenaStorage> storage;
  std::unique_ptr<Cache> cache;
  Execution execution;
  std::unique_ptr<StepBatch> batch;
  std::unique_ptr<SequenceLease> lease;
  std::vector<int32_t> ids;
};

at::ScalarType TypeOf(const benchmark::State& state) { return state.range(1) == 0 ? at::kFloat : at::kBFloat16; }

void BM_Mamba2Scan(benchmark::State& state) {
  at::set_num_threads(1);
  const int64_t tokens = state.range(0);
  const ops::Mamba2Shape shape = {.heads = 24, .head_dim = 64, .state_dim = state.range(2), .groups = 1};
  Layer layer({shape.heads, shape.state_dim, shape.head_dim});
  layer.Fill(tokens);
  layer.Fill(tokens);
  const at::Tensor xbc = at::randn({tokens, shape.heads * shape.head_dim + 2 * shape.state_dim}).to(TypeOf(state));
  const at::Tensor dt = at::randn({tokens, shape.heads}).to(TypeOf(state));
  const at::Tensor a = -at::rand({shape.heads});
  for (auto _ : state) benchmark::DoNotOptimize(ops::Mamba2Scan(xbc, dt, a, a, a, shape, *layer.batch));
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_Mamba2Scan)
    ->ArgNames({"tokens", "bf16", "state_dim"})
    ->ArgsProduct({{1, 15, 16, 64, 512}, {0, 1}, {128, 256}});

void BM_MambaScan(benchmark::State& state) {
  at::set_num_threads(1);
  const int64_t tokens = state.range(0);
  const int64_t channels = 1536, state_dim = 16;
  Layer layer({state_dim, channels});
  layer.Fill(tokens);
  layer.Fill(tokens);
  const auto random = [&](int64_t columns) { return at::randn({tokens, columns}).to(TypeOf(state)); };
  const ops::MambaInputs inputs = {random(channels), random(channels), random(channels), random(state_dim).unsqueeze(1),
                                   random(state_dim).unsqueeze(1)};
  const at::Tensor a = -at::rand({state_dim, channels});
  const at::Tensor d = at::randn({channels});
  for (auto _ : state) benchmark::DoNotOptimize(ops::MambaScan(inputs, a, d, d, 0, 0, *layer.batch));
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_MambaScan)->ArgNames({"tokens", "bf16"})->ArgsProduct({{1, 4, 5, 64, 512}, {0, 1}});

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
