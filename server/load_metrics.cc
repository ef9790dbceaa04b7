#include "server/load_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;
using Labels = MetricFamilies::Labels;

constexpr absl::string_view kPreemptionActions[] = {"suspend", "suspend_state", "recompute"};
// A unit or byte is in one state. shared, cached and suspended ones are not told apart from live ones yet.
constexpr absl::string_view kUnusedStates[] = {"shared", "cached", "suspended"};

double Ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// All pools of one kind together.
struct KindTotals {
  bool present = false;
  int64_t live_bytes = 0;
  int64_t free_bytes = 0;
  int64_t overhead_bytes = 0;
  int64_t live_units = 0;
  int64_t free_units = 0;
  int64_t live_tokens = 0;
};

using Totals = std::array<KindTotals, kNumCacheKinds>;

Totals TotalsByKind(const Occupancy& occupancy) {
  Totals totals;
  for (const PoolOccupancy& pool : occupancy.pools) {
    KindTotals& kind = totals[static_cast<size_t>(pool.kind)];
    kind.present = true;
    kind.live_bytes += pool.live_bytes();
    kind.free_bytes += pool.free_bytes();
    kind.overhead_bytes += pool.overhead_bytes;
    kind.live_units += pool.live_units;
    kind.free_units += pool.free_units;
    kind.live_tokens += pool.live_tokens;
  }
  return totals;
}

Labels PoolState(absl::string_view pool, absl::string_view state) {
  return {{"pool", std::string(pool)}, {"state", std::string(state)}};
}

absl::string_view KindName(size_t kind) { return CacheKindName(static_cast<CacheKind>(kind)); }

void AddGauge(MetricFamilies* families, absl::string_view name, absl::string_view help, int64_t value,
              absl::string_view alias = "") {
  families->Start(Type::kGauge, name, help, alias);
  families->Add(static_cast<double>(value));
}

void AddCounter(MetricFamilies* families, absl::string_view name, absl::string_view help, int64_t value,
                absl::string_view alias = "") {
  families->Start(Type::kCounter, name, help, alias);
  families->Add(static_cast<double>(value));
}

void CollectBytes(const Occupancy& occupancy, const Totals& totals, MetricFamilies* families) {
  AddGauge(families, "berth_cache_arena_bytes", "The cache's memory", occupancy.arena_bytes);
  families->Start(Type::kGauge, "berth_cache_bytes", "What the arena's bytes are doing; adds up to the arena");
  const auto add = [families](absl::string_view pool, int64_t live, int64_t free, int64_t overhead) {
    families->Add(static_cast<double>(live), PoolState(pool, "live"));
    families->Add(static_cast<double>(free), PoolState(pool, "free"));
    families->Add(static_cast<double>(overhead), PoolState(pool, "overhead"));
    for (absl::string_view state : kUnusedStates) families->Add(0, PoolState(pool, state));
  };
  for (size_t k = 0; k < totals.size(); ++k) {
    add(KindName(k), totals[k].live_bytes, totals[k].free_bytes, totals[k].overhead_bytes);
  }
  add("none", 0, occupancy.unassigned_free_bytes, occupancy.unassigned_overhead_bytes);
}

void CollectUnits(const Totals& totals, const CachePlan& plan, MetricFamilies* families) {
  families->Start(Type::kGauge, "berth_cache_units", "Units in the pools' slabs: blocks of tokens, or states");
  for (size_t k = 0; k < totals.size(); ++k) {
    families->Add(static_cast<double>(totals[k].live_units), PoolState(KindName(k), "live"));
    families->Add(static_cast<double>(totals[k].free_units), PoolState(KindName(k), "free"));
    for (absl::string_view state : kUnusedStates) families->Add(0, PoolState(KindName(k), state));
  }
  families->Start(Type::kGauge, "berth_cache_tokens", "Tokens whose keys and values the pools hold, or have room for");
  for (CacheKind kind : {CacheKind::kStatic, CacheKind::kSliding, CacheKind::kChunked, CacheKind::kCross}) {
    const KindTotals& total = totals[static_cast<size_t>(kind)];
    families->Add(static_cast<double>(total.live_tokens), PoolState(CacheKindName(kind), "live"));
    families->Add(static_cast<double>(total.free_units * plan.block_tokens), PoolState(CacheKindName(kind), "free"));
    for (absl::string_view state : kUnusedStates) families->Add(0, PoolState(CacheKindName(kind), state));
  }
}

void CollectUsage(const Occupancy& occupancy, const Totals& totals, MetricFamilies* families) {
  const CacheUsage usage = UsageOf(occupancy);
  families->Start(Type::kGauge, "berth_cache_usage_ratio",
                  "Live bytes of those that the pool could have now; max: the fullest");
  for (size_t k = 0; k < usage.pools.size(); ++k) families->Add(usage.pools[k], {{"pool", std::string(KindName(k))}});
  families->Add(usage.arena, {{"pool", "arena"}});
  families->Add(usage.max, {{"pool", "max"}});
  families->StartAlias(Type::kGauge, "vllm:kv_cache_usage_perc", "How full the fullest pool is; 1: full");
  families->Add(usage.max);

  int64_t pool_free = 0;
  for (const KindTotals& total : totals) pool_free += total.free_bytes;
  families->Start(Type::kGauge, "berth_cache_fragmentation_ratio",
                  "Free bytes that only the pool that holds them can use, of all free bytes");
  families->Add(Ratio(pool_free, pool_free + occupancy.unassigned_free_bytes));
  AddGauge(families, "berth_cache_largest_admissible_tokens", "The longest new sequence that would fit now",
           occupancy.largest_admissible_tokens);
  AddGauge(families, "berth_cache_leases", "Sequences that hold a lease", occupancy.num_leases);
}

// vLLM says how many blocks of tokens there are: as if one pool of keys and values had the whole arena.
void CollectVllmCacheInfo(const Occupancy& occupancy, const CachePlan& plan, MetricFamilies* families) {
  int64_t static_bytes = 0;
  int64_t kv_bytes = 0;
  for (const CacheGroup& group : plan.groups) {
    if (group.kind == CacheKind::kRecurrent) continue;
    kv_bytes += group.unit_bytes;
    if (group.kind == CacheKind::kStatic) static_bytes += group.unit_bytes;
  }
  const int64_t block_bytes = static_bytes > 0 ? static_bytes : kv_bytes;
  families->StartAlias(Type::kGauge, "vllm:cache_config_info", "Blocks of keys and values that the arena could hold");
  families->Add(1, {{"block_size", absl::StrCat(plan.block_tokens)},
                    {"num_gpu_blocks", absl::StrCat(block_bytes > 0 ? occupancy.arena_bytes / block_bytes : 0)}});
}

void CollectEngine(const EngineLoad& load, MetricFamilies* families) {
  AddGauge(families, "berth_requests_running", "Requests that hold a lease", load.num_running,
           "vllm:num_requests_running");
  AddGauge(families, "berth_requests_waiting", "Requests that wait for a lease", load.num_waiting,
           "vllm:num_requests_waiting");
  AddGauge(families, "berth_requests_waiting_tokens", "Tokens that the waiting requests have to prefill",
           load.waiting_tokens);
  families->Start(Type::kCounter, "berth_preemptions_total", "Leases taken from running requests, by how");
  for (absl::string_view action : kPreemptionActions) {
    families->Add(action == "recompute" ? static_cast<double>(load.num_preemptions) : 0,
                  {{"action", std::string(action)}});
  }
  families->StartAlias(Type::kCounter, "vllm:num_preemptions_total", "Leases taken from running requests");
  families->Add(static_cast<double>(load.num_preemptions));
  AddCounter(families, "berth_prompt_tokens_total", "Prompt tokens computed; again after a preemption not counted",
             load.prompt_tokens, "vllm:prompt_tokens_total");
  AddCounter(families, "berth_generation_tokens_total", "Tokens generated", load.generation_tokens,
             "vllm:generation_tokens_total");
  AddCounter(families, "berth_steps_total", "Steps of the engine", load.num_steps);
}

}  // namespace

CacheUsage UsageOf(const Occupancy& occupancy) {
  CacheUsage usage;
  int64_t live = 0;
  int64_t free = occupancy.unassigned_free_bytes;
  const Totals totals = TotalsByKind(occupancy);
  for (size_t k = 0; k < totals.size(); ++k) {
    if (!totals[k].present) continue;
    const int64_t obtainable = totals[k].live_bytes + totals[k].free_bytes + occupancy.unassigned_free_bytes;
    usage.pools[k] = obtainable > 0 ? Ratio(totals[k].live_bytes, obtainable) : 1;  // others hold everything: full
    usage.max = std::max(usage.max, usage.pools[k]);
    live += totals[k].live_bytes;
    free += totals[k].free_bytes;
  }
  usage.arena = Ratio(live, live + free);
  usage.max = std::max(usage.max, usage.arena);
  return usage;
}

void CollectLoad(const EngineLoad& load, const CachePlan& plan, MetricFamilies* families) {
  const Totals totals = TotalsByKind(load.occupancy);
  CollectEngine(load, families);
  CollectBytes(load.occupancy, totals, families);
  CollectUnits(totals, plan, families);
  CollectUsage(load.occupancy, totals, families);
  CollectVllmCacheInfo(load.occupancy, plan, families);
}

}  // namespace berth
