#include "server/metrics/load_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;
using Labels = MetricFamilies::Labels;

// What a unit or byte is doing; each does one thing. suspended ones are in a tier, not in the arena.
constexpr absl::string_view kStates[] = {"live", "shared", "cached", "free", "overhead", "suspended"};
enum State { kLive, kShared, kCached, kFree, kOverhead, kNumStates };

double Ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// All pools of one kind together, by state.
struct KindTotals {
  bool present = false;
  int64_t bytes[kNumStates] = {};
  int64_t units[kNumStates] = {};
  int64_t tokens[kNumStates] = {};
  int64_t evicted_units = 0;
  int64_t compacted_bytes = 0;

  int64_t held_bytes() const { return bytes[kLive] + bytes[kShared]; }
};

using Totals = std::array<KindTotals, kNumCacheKinds>;

Totals TotalsByKind(const Occupancy& occupancy, int64_t block_tokens) {
  Totals totals;
  for (const PoolOccupancy& pool : occupancy.pools) {
    KindTotals& kind = totals[static_cast<size_t>(pool.kind)];
    kind.present = true;
    const int64_t units[] = {pool.live_units, pool.shared_units, pool.cached_units, pool.free_units};
    for (int state = kLive; state <= kFree; ++state) {
      kind.units[state] += units[state];
      kind.bytes[state] += pool.bytes(units[state]);
    }
    kind.tokens[kLive] += pool.live_tokens;
    kind.tokens[kCached] += pool.cached_tokens;
    kind.tokens[kFree] += pool.free_units * block_tokens;
    kind.evicted_units += pool.evicted_units;
    kind.compacted_bytes += pool.compacted_bytes;
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
  const auto add = [families](absl::string_view pool, const int64_t* bytes) {
    for (int state = 0; state < kNumStates; ++state) {
      families->Add(static_cast<double>(bytes[state]), PoolState(pool, kStates[state]));
    }
    families->Add(0, PoolState(pool, "suspended"));
  };
  for (size_t k = 0; k < totals.size(); ++k) add(KindName(k), totals[k].bytes);
  int64_t unassigned[kNumStates] = {};
  unassigned[kFree] = occupancy.unassigned_free_bytes;
  unassigned[kOverhead] = occupancy.unassigned_overhead_bytes;
  add("none", unassigned);
}

void CollectUnits(const Totals& totals, MetricFamilies* families) {
  families->Start(Type::kGauge, "berth_cache_units", "Units in the pools' slabs: blocks of tokens, or states");
  for (size_t k = 0; k < totals.size(); ++k) {
    for (int state = kLive; state <= kFree; ++state) {
      families->Add(static_cast<double>(totals[k].units[state]), PoolState(KindName(k), kStates[state]));
    }
  }
  families->Start(Type::kGauge, "berth_cache_tokens",
                  "Tokens that sequences hold (live; a shared one counts for each), that only the index holds, or that "
                  "free units have room for");
  for (CacheKind kind : {CacheKind::kStatic, CacheKind::kSliding, CacheKind::kChunked, CacheKind::kCross}) {
    const KindTotals& total = totals[static_cast<size_t>(kind)];
    for (State state : {kLive, kCached, kFree}) {
      families->Add(static_cast<double>(total.tokens[state]), PoolState(CacheKindName(kind), kStates[state]));
    }
  }
  families->Start(Type::kCounter, "berth_cache_evictions_total",
                  "Units that the prefix index gave up because a sequence needed their bytes");
  for (size_t k = 0; k < totals.size(); ++k) {
    families->Add(static_cast<double>(totals[k].evicted_units), {{"pool", std::string(KindName(k))}});
  }
  families->Start(Type::kCounter, "berth_cache_compacted_bytes_total", "Bytes moved to make free ones one piece");
  for (size_t k = 0; k < totals.size(); ++k) {
    families->Add(static_cast<double>(totals[k].compacted_bytes), {{"pool", std::string(KindName(k))}});
  }
}

void CollectUsage(const Occupancy& occupancy, MetricFamilies* families) {
  const CacheUsage usage = UsageOf(occupancy);
  families->Start(Type::kGauge, "berth_cache_usage_ratio",
                  "Bytes that sequences hold, of those that the pool could have now; max: the fullest");
  for (size_t k = 0; k < usage.pools.size(); ++k) families->Add(usage.pools[k], {{"pool", std::string(KindName(k))}});
  families->Add(usage.arena, {{"pool", "arena"}});
  families->Add(usage.max, {{"pool", "max"}});
  families->StartAlias(Type::kGauge, "vllm:kv_cache_usage_perc", "How full the fullest pool is; 1: full");
  families->Add(usage.max);

  const int64_t free = occupancy.FreeBytes();
  families->Start(Type::kGauge, "berth_cache_fragmentation_ratio",
                  "Free bytes outside the largest free piece, of all free bytes; compaction makes them one piece");
  families->Add(Ratio(free - occupancy.largest_hole_bytes, free));
  AddGauge(families, "berth_cache_largest_admissible_tokens", "The longest new sequence that would fit now",
           occupancy.largest_admissible_tokens);
  AddGauge(families, "berth_cache_leases", "Sequences that hold a lease", occupancy.num_leases);
}

void CollectTiers(const EngineLoad& load, const SessionLoad& sessions, MetricFamilies* families) {
  families->Start(
      Type::kGauge, "berth_cache_tier_bytes",
      "Caches kept outside the arena: host, of suspended sequences and prefixes; disk, files of sessions and "
      "prefixes");
  families->Add(static_cast<double>(load.host_tier.sequence_bytes + load.host_tier.prefix_bytes),
                {{"tier", "host"}, {"state", "used"}});
  families->Add(static_cast<double>(load.host_tier.free_bytes()), {{"tier", "host"}, {"state", "free"}});
  families->Add(static_cast<double>(sessions.used_bytes + load.prefix_tier.disk_bytes),
                {{"tier", "disk"}, {"state", "used"}});
  families->Add(static_cast<double>(std::max<int64_t>(0, sessions.limit_bytes - sessions.used_bytes) +
                                    load.disk_tier_limit_bytes - load.prefix_tier.disk_bytes),
                {{"tier", "disk"}, {"state", "free"}});
  families->Start(Type::kCounter, "berth_session_saves_total", "Writes of sessions to the disk");
  families->Add(static_cast<double>(sessions.num_saves), {{"result", "ok"}});
  families->Add(static_cast<double>(sessions.num_failed_saves), {{"result", "failed"}});
}

void CollectPrefixTier(const EngineLoad& load, MetricFamilies* families) {
  const PrefixTier::Counts& counts = load.prefix_tier;
  const auto add = [families](int64_t value, absl::string_view label, absl::string_view name) {
    families->Add(static_cast<double>(value), {{std::string(label), std::string(name)}});
  };
  families->Start(Type::kGauge, "berth_prefix_tier_bytes", "Of the tiers' bytes, those of prefixes");
  add(load.host_tier.prefix_bytes, "tier", "host");
  add(counts.disk_bytes, "tier", "disk");
  AddCounter(families, "berth_prefix_tier_hits_total", "Prefixes brought back to the arena from host memory",
             counts.num_hits);
  AddCounter(families, "berth_prefix_tier_disk_reads_total", "Prefixes that were to be read from the disk for that",
             counts.num_disk_reads);
  AddCounter(families, "berth_prefix_tier_restored_tokens_total",
             "Tokens of the prefixes brought back that the arena did not hold", counts.restored_tokens);
  families->Start(Type::kCounter, "berth_prefix_tier_evictions_total",
                  "Prefixes that a tier dropped for others; arena: gone before they were copied");
  add(counts.lost, "tier", "arena");
  add(counts.host_evictions, "tier", "host");
  add(counts.disk_evictions, "tier", "disk");
  families->Start(Type::kCounter, "berth_prefix_tier_errors_total",
                  "Files of prefixes that could not be written (full, write) or used (torn, foreign, read)");
  add(counts.full_disk, "reason", "full");
  add(counts.failed_writes, "reason", "write");
  add(counts.torn_files, "reason", "torn");
  add(counts.foreign_files, "reason", "foreign");
  add(counts.failed_reads, "reason", "read");
}

// vLLM says how many blocks of tokens there are: as if one pool of keys and values had the whole arena.
void CollectVllmCacheInfo(const Occupancy& occupancy, const CachePlan& plan, MetricFamilies* families) {
  int64_t static_bytes = 0;
  int64_t kv_bytes = 0;
  for (const CacheGroup& group : plan.groups) {
    if (group.of_states()) continue;
    kv_bytes += group.unit_bytes;
    if (group.kind == CacheKind::kStatic) static_bytes += group.unit_bytes;
  }
  const int64_t block_bytes = static_bytes > 0 ? static_bytes : kv_bytes;
  families->StartAlias(Type::kGauge, "vllm:cache_config_info", "Blocks of keys and values that the arena could hold");
  families->Add(1, {{"block_size", absl::StrCat(plan.block_tokens)},
                    {"num_gpu_blocks", absl::StrCat(block_bytes > 0 ? occupancy.arena_bytes / block_bytes : 0)}});
}

void CollectEngine(const EngineLoad& load, MetricFamilies* families) {
  AddGauge(families, "berth_requests_running", "Requests that hold a lease", load.counts.num_running,
           "vllm:num_requests_running");
  AddGauge(families, "berth_requests_waiting", "Requests that wait for a lease", load.counts.num_waiting,
           "vllm:num_requests_waiting");
  AddGauge(families, "berth_requests_waiting_tokens", "Tokens that the waiting requests have to prefill",
           load.counts.waiting_tokens);
  families->Start(Type::kCounter, "berth_preemptions_total", "Leases taken from running requests, by how");
  families->Add(static_cast<double>(load.counts.num_suspensions), {{"action", "suspend"}});
  families->Add(0, {{"action", "suspend_state"}});  // never the cheaper one: scheduler/swap_manager.h
  families->Add(static_cast<double>(load.counts.num_preemptions - load.counts.num_suspensions),
                {{"action", "recompute"}});
  families->StartAlias(Type::kCounter, "vllm:num_preemptions_total", "Leases taken from running requests");
  families->Add(static_cast<double>(load.counts.num_preemptions));
  AddCounter(families, "berth_prompt_tokens_total",
             "Prompt tokens computed or found in the cache; again after a preemption not counted",
             load.counts.prompt_tokens, "vllm:prompt_tokens_total");
  AddCounter(families, "berth_generation_tokens_total", "Tokens generated", load.counts.generation_tokens,
             "vllm:generation_tokens_total");
  AddCounter(families, "berth_prefix_cache_queried_tokens_total", "Tokens of prompts that looked for their prefix",
             load.counts.prefix_queried_tokens, "vllm:prefix_cache_queries_total");
  AddCounter(families, "berth_prefix_cache_hit_tokens_total", "Of those, tokens that the cache still held",
             load.counts.prefix_hit_tokens, "vllm:prefix_cache_hits_total");
  AddCounter(families, "berth_prefix_cache_replayed_tokens_total",
             "Of those, tokens that were known but computed again from the state before them",
             load.counts.prefix_replayed_tokens);
  AddCounter(families, "berth_draft_tokens_total", "Guesses of next tokens that steps checked",
             load.counts.draft_tokens, "vllm:spec_decode_num_draft_tokens_total");
  AddCounter(families, "berth_accepted_draft_tokens_total", "Of those, right ones", load.counts.accepted_draft_tokens,
             "vllm:spec_decode_num_accepted_tokens_total");
  AddCounter(families, "berth_steps_total", "Steps of the engine", load.num_steps);
  AddCounter(
      families, "berth_device_allocations_total",
      "Times that memory of a GPU was taken from its system, the arena's among them; stands still after start-up",
      load.num_device_allocations);
  AddCounter(families, "berth_graph_launches_total", "Steps that were launched as CUDA graphs",
             load.num_graph_launches);
}

}  // namespace

CacheUsage UsageOf(const Occupancy& occupancy) {
  CacheUsage usage;
  const Totals totals = TotalsByKind(occupancy, /*block_tokens=*/0);
  int64_t held = 0;
  int64_t obtainable = occupancy.unassigned_free_bytes;  // whatever no sequence holds can serve any kind
  for (const KindTotals& total : totals) {
    held += total.held_bytes();
    obtainable += total.bytes[kFree] + total.bytes[kCached];
  }
  for (size_t k = 0; k < totals.size(); ++k) {
    if (!totals[k].present) continue;
    const int64_t could_have = totals[k].held_bytes() + obtainable;
    usage.pools[k] = could_have > 0 ? Ratio(totals[k].held_bytes(), could_have) : 1;  // others hold everything: full
    usage.max = std::max(usage.max, usage.pools[k]);
  }
  usage.arena = Ratio(held, held + obtainable);
  usage.max = std::max(usage.max, usage.arena);
  return usage;
}

void CollectLoad(const EngineLoad& load, const SessionLoad& sessions, const CachePlan& plan, MetricFamilies* families) {
  const Totals totals = TotalsByKind(load.occupancy, plan.block_tokens);
  CollectEngine(load, families);
  CollectBytes(load.occupancy, totals, families);
  CollectUnits(totals, families);
  CollectUsage(load.occupancy, families);
  CollectTiers(load, sessions, families);
  CollectPrefixTier(load, families);
  CollectVllmCacheInfo(load.occupancy, plan, families);
}

}  // namespace berth
