// The gated delta net's prefill and decode on one layer of usual sizes, one thread. Below kDeltaChunked tokens a step
// goes token by token: its items per second beside those of longer steps show what the chunks bring. Run:
//   bazel run -c opt //bench:delta_net_bench
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/ops/cpu_kernels.h"
#include "models/ops/gated_delta_net/gated_delta_net.h"

namespace berth {
namespace {

// Args: tokens, whether bfloat16, which kernels.
void BM_GatedDeltaNet(benchmark::State& state) {
  at::set_num_threads(1);
  const ops::cpu::Kernels* sets[] = {&ops::cpu::avx512::kKernels, &ops::cpu::avx2::kKernels,
                                     &ops::cpu::baseline::kKernels, &ops::cpu::amx::kKernels,
                                     &ops::cpu::avx512_bf16::kKernels};
  const ops::cpu::Kernels& kernels = *sets[state.range(2)];
  if (!ops::cpu::IsSupported(kernels)) return state.SkipWithError("not on this machine");
  Execution execution = {.cpu_kernels = &kernels};
  state.SetLabel(kernels.capability);
  const int64_t tokens = state.range(0);
  const at::ScalarType type = state.range(1) == 0 ? at::kFloat : at::kBFloat16;
  const ops::DeltaNetShape shape = {.k_heads = 16, .v_heads = 32, .key_dim = 128, .value_dim = 128};  // qwen3_next's
  const CachePlan plan =
      *BuildCachePlan({{.states = {{.shape = {shape.v_heads, shape.key_dim, shape.value_dim}}}}}, 16);
  const auto storage = *CreateHostStorage(int64_t{64} << 20);
  const auto cache = *Cache::Create(plan, storage.get(), {});
  StepBatch batch(plan, storage->base(), at::kCPU, &execution);
  SequenceLease lease = cache->NewLease();
  const std::vector<int32_t> ids(tokens, 1);
  for (int64_t start : {int64_t{0}, tokens}) {  // the second step has a state behind it
    if (!lease.Grow(tokens).ok()) std::abort();
    StepPlan step;
    step.rows.push_back({.lease = &lease, .tokens = ids, .start = start});
    step.num_tokens = tokens;
    batch.Fill(step);
  }
  const at::Tensor qkv =
      at::randn({tokens, 2 * shape.k_heads * shape.key_dim + shape.v_heads * shape.value_dim}).to(type);
  const at::Tensor a = at::randn({tokens, shape.v_heads}).to(type);
  const at::Tensor rate = -at::rand({shape.v_heads});
  for (auto _ : state) benchmark::DoNotOptimize(ops::GatedDeltaNet(qkv, a, a, rate, rate, shape, batch));
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_GatedDeltaNet)
    ->ArgNames({"tokens", "bf16", "set"})
    ->ArgsProduct({{1, 4, 7, 8, 16, 32, 64, 512}, {0}, {0, 1, 2}})
    ->ArgsProduct({{1, 24, 32, 64, 512}, {1}, {3, 4}});

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
