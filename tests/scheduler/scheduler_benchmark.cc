// What a step costs the scheduler: bazel run -c opt //tests/scheduler:scheduler_benchmark
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "scheduler/policy/fair_policy.h"
#include "scheduler/scheduler.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

// Plan and Commit of a step in which every row decodes; one layer of each kind.
void BM_DecodeStep(benchmark::State& state) {
  const int64_t num_rows = state.range(0);
  TinyCache tiny({StaticLayer(), SlidingLayer(64), RecurrentLayer()}, /*arena_size=*/40 * num_rows,
                 /*piece_bytes=*/1 << 16);
  auto scheduler = Scheduler::Create(tiny.cache.get(), {.max_running = num_rows,
                                                        .max_step_tokens = num_rows,
                                                        .prefill_chunk_tokens = 1,
                                                        .max_sequence_tokens = 1 << 14});
  std::vector<TokenEvent> events;
  StepResult result;
  result.rows.resize(num_rows);
  for (RowResult& row : result.rows) row.token = 1;
  RequestKey key = 0;
  for (auto _ : state) {
    while ((*scheduler)->counts().num_running + (*scheduler)->counts().num_waiting < num_rows) {
      state.PauseTiming();
      Request request;
      request.key = ++key;
      request.prompt = {1};
      request.max_tokens = (1 << 14) - 1;
      (*scheduler)->Add(std::move(request));
      state.ResumeTiming();
    }
    (*scheduler)->EndDue(absl::UnixEpoch(), &events);
    (*scheduler)->Plan(absl::UnixEpoch());
    (*scheduler)->Commit(result, absl::UnixEpoch(), &events);
    events.clear();
  }
  state.SetItemsProcessed(state.iterations() * num_rows);
}
BENCHMARK(BM_DecodeStep)->Arg(1)->Arg(32)->Arg(256);

// Steps of one row, while the first waiting sequence lacks room. The index knows a quarter of its long prompt.
void BM_StepBesideOneThatLacksRoom(benchmark::State& state) {
  const int64_t prompt_tokens = state.range(0);
  // The one that runs leaves room for half a prompt.
  TinyCache tiny({StaticLayer()}, /*arena_size=*/prompt_tokens * 3 / 2 / (2 * kTinyBlockTokens));
  auto scheduler = Scheduler::Create(tiny.cache.get(), {.max_running = 2,
                                                        .max_step_tokens = prompt_tokens + 1,
                                                        .prefill_chunk_tokens = prompt_tokens,
                                                        .max_sequence_tokens = 2 * prompt_tokens,
                                                        .share_prefixes = true});
  std::vector<TokenEvent> events;
  StepResult result;
  result.rows.resize(1);
  result.rows[0].token = 1;
  const auto step = [&] {
    (*scheduler)->EndDue(absl::UnixEpoch(), &events);
    (*scheduler)->Plan(absl::UnixEpoch());
    (*scheduler)->Commit(result, absl::UnixEpoch(), &events);
    events.clear();
  };
  for (RequestKey key : {1, 2}) {
    Request request;
    request.key = key;
    request.prompt.assign(prompt_tokens / 4, 5);
    request.prompt.resize(prompt_tokens, static_cast<int32_t>(key));
    request.max_tokens = prompt_tokens / 4;
    (*scheduler)->Add(std::move(request));
    step();
  }
  for (auto _ : state) step();
  if ((*scheduler)->counts().num_running != 1 || (*scheduler)->counts().num_waiting != 1) std::abort();
}
BENCHMARK(BM_StepBesideOneThatLacksRoom)->Arg(4000)->Arg(32000)->Iterations(900);

// A step that admits 8 requests under FairPolicy, while 10,000 of 1,000 tenants wait, and the 8 that end and arrive.
void BM_FairAdmission(benchmark::State& state) {
  const int64_t num_tenants = state.range(0);
  constexpr int64_t kWaiting = 10000;
  constexpr int64_t kRunning = 8;
  TinyCache tiny({StaticLayer()}, /*arena_size=*/4 * kRunning);
  FairPolicy policy({});
  auto scheduler = Scheduler::Create(tiny.cache.get(), {.max_running = kRunning,
                                                        .max_step_tokens = 4 * kRunning,
                                                        .prefill_chunk_tokens = 4,
                                                        .max_sequence_tokens = 5,
                                                        .policy = state.range(1) != 0 ? &policy : nullptr});
  std::vector<TokenEvent> events;
  StepResult result;
  result.rows.resize(kRunning);
  for (RowResult& row : result.rows) row.token = 1;
  RequestKey key = 0;
  for (auto _ : state) {
    while ((*scheduler)->counts().num_waiting < kWaiting) {
      Request request;
      request.key = ++key;
      request.prompt = {1, 2, 3, 4};
      request.max_tokens = 1;
      request.cache_salt = std::to_string(key * 7919 % num_tenants);
      (*scheduler)->Add(std::move(request));
    }
    (*scheduler)->Plan(absl::UnixEpoch());
    (*scheduler)->Commit(result, absl::UnixEpoch(), &events);
    events.clear();
  }
  state.SetItemsProcessed(state.iterations() * kRunning);
}
BENCHMARK(BM_FairAdmission)->ArgNames({"tenants", "fair"})->ArgsProduct({{1, 1000, 10000}, {0, 1}});

// What the engine adds to each step for the metrics.
void BM_Occupancy(benchmark::State& state) {
  const int64_t num_leases = state.range(0);
  TinyCache tiny({StaticLayer(), SlidingLayer(64), RecurrentLayer()}, /*arena_size=*/num_leases + 8,
                 /*piece_bytes=*/1 << 16);
  std::vector<SequenceLease> leases;
  for (int64_t i = 0; i < num_leases; ++i) {
    leases.push_back(tiny.cache->NewLease());
    benchmark::DoNotOptimize(leases.back().Grow(100));
  }
  Occupancy occupancy;
  for (auto _ : state) tiny.cache->GetOccupancy(/*step_tokens=*/256, /*limit=*/1 << 14, &occupancy);
}
BENCHMARK(BM_Occupancy)->Arg(1)->Arg(32)->Arg(256);

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
