// Time to choose one row's token on one CPU thread, beside a sort of the row and beside copying it.
//   bazel run -c opt //bench:sampler_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "models/sampling/sampler.h"
#include "models/token_constraint.h"

namespace berth {
namespace {

// Logits as a language model gives them, roughly: a wide bulk and a few likely tokens.
std::vector<float> Logits(int64_t vocab) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  for (int i = 0; i < 20; ++i) logits[random() % logits.size()] = 8.0f + 0.5f * static_cast<float>(i);
  return logits;
}

// Allows one token in `one_in`; 0: there is no mask.
void Run(benchmark::State& state, const SamplingParams& params, int64_t one_in = 0) {
  const std::vector<float> logits = Logits(state.range(0));
  const std::vector<int32_t> history(1000, 7);
  StepRow row;
  row.sampling = &params;
  row.history = history;
  row.prompt_length = 500;
  RowMasks masks;
  if (one_in > 0) {
    const int64_t vocab = state.range(0);
    const absl::Span<uint32_t> mask = masks.Reset(1, MaskWords(vocab));
    std::mt19937_64 random(2);
    for (int64_t t = 0; t < vocab; ++t) {
      if (random() % static_cast<uint64_t>(one_in) == 0) mask[t / 32] |= uint32_t{1} << (t % 32);
    }
    masks.SetDone();
    row.masks = &masks;
  }
  Sampler sampler;
  RowResult result;
  for (auto _ : state) {
    ++row.start;
    sampler.SampleRow(logits, row, &result);
    benchmark::DoNotOptimize(result.token);
  }
}

void Greedy(benchmark::State& state) { Run(state, {.temperature = 0}); }
void Plain(benchmark::State& state) { Run(state, {}); }
void TopK50(benchmark::State& state) { Run(state, {.top_k = 50}); }
void TopK50TopP(benchmark::State& state) { Run(state, {.temperature = 0.7f, .top_k = 50, .top_p = 0.9f}); }
void TopP(benchmark::State& state) { Run(state, {.temperature = 0.7f, .top_p = 0.9f}); }
void TopPHot(benchmark::State& state) { Run(state, {.temperature = 2, .top_p = 0.95f}); }
void MinP(benchmark::State& state) { Run(state, {.min_p = 0.05f}); }
void Penalties(benchmark::State& state) {
  Run(state, {.temperature = 0, .repetition_penalty = 1.1f, .presence_penalty = 0.1f, .frequency_penalty = 0.1f});
}
void GreedyLogprobs(benchmark::State& state) { Run(state, {.temperature = 0, .num_logprobs = 5}); }

// With a mask, as a string of a JSON text has it, and as its punctuation.
constexpr int64_t kMost = 2;
constexpr int64_t kFew = 8000;
void GreedyOfMost(benchmark::State& state) { Run(state, {.temperature = 0}, kMost); }
void GreedyOfFew(benchmark::State& state) { Run(state, {.temperature = 0}, kFew); }
void PlainOfMost(benchmark::State& state) { Run(state, {}, kMost); }
void PlainOfFew(benchmark::State& state) { Run(state, {}, kFew); }
void TopK50OfMost(benchmark::State& state) { Run(state, {.top_k = 50}, kMost); }
void TopK50OfFew(benchmark::State& state) { Run(state, {.top_k = 50}, kFew); }
void TopPOfMost(benchmark::State& state) { Run(state, {.temperature = 0.7f, .top_p = 0.9f}, kMost); }
void TopPOfFew(benchmark::State& state) { Run(state, {.temperature = 0.7f, .top_p = 0.9f}, kFew); }

void CopyRow(benchmark::State& state) {
  const std::vector<float> logits = Logits(state.range(0));
  std::vector<float> copy(logits.size());
  for (auto _ : state) {
    std::copy(logits.begin(), logits.end(), copy.begin());
    benchmark::ClobberMemory();
  }
}

void SortRow(benchmark::State& state) {
  const std::vector<float> logits = Logits(state.range(0));
  std::vector<float> copy;
  for (auto _ : state) {
    copy = logits;
    std::sort(copy.rbegin(), copy.rend());
    benchmark::ClobberMemory();
  }
}

#define BERTH_SAMPLER_BENCH(name) BENCHMARK(name)->Arg(32000)->Arg(151936)->Unit(benchmark::kMicrosecond)
BERTH_SAMPLER_BENCH(Greedy);
BERTH_SAMPLER_BENCH(Plain);
BERTH_SAMPLER_BENCH(TopK50);
BERTH_SAMPLER_BENCH(TopK50TopP);
BERTH_SAMPLER_BENCH(TopP);
BERTH_SAMPLER_BENCH(TopPHot);
BERTH_SAMPLER_BENCH(MinP);
BERTH_SAMPLER_BENCH(Penalties);
BERTH_SAMPLER_BENCH(GreedyLogprobs);
BERTH_SAMPLER_BENCH(GreedyOfMost);
BERTH_SAMPLER_BENCH(GreedyOfFew);
BERTH_SAMPLER_BENCH(PlainOfMost);
BERTH_SAMPLER_BENCH(PlainOfFew);
BERTH_SAMPLER_BENCH(TopK50OfMost);
BERTH_SAMPLER_BENCH(TopK50OfFew);
BERTH_SAMPLER_BENCH(TopPOfMost);
BERTH_SAMPLER_BENCH(TopPOfFew);
BERTH_SAMPLER_BENCH(CopyRow);
BERTH_SAMPLER_BENCH(SortRow);

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
