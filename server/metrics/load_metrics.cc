#include "server/metrics/load_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/load_table.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;
using Labels = MetricFamilies::Labels;

double Ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

CacheKind KindAt(size_t index) { return static_cast<CacheKind>(index); }

MetricFamilies::Label PoolLabel(absl::string_view name) { return {"pool", std::string(name)}; }

// The sum of `value` over the pools of `kind`.
template <typename Value>
int64_t SumOver(const Occupancy& occupancy, CacheKind kind, const Value& value) {
  int64_t sum = 0;
  for (const PoolOccupancy& pool : occupancy.pools) sum += pool.kind == kind ? value(pool) : 0;
  return sum;
}

// Adds one series of `figure`, whose own labels follow `labels`.
template <typename Source, typename Message>
void AddSeries(const Figure<Source, Message>& figure, int64_t value, Labels labels, MetricFamilies* families) {
  const Type type = absl::EndsWith(figure.metric, "_total") ? Type::kCounter : Type::kGauge;
  families->Start(type, figure.metric, figure.help, figure.alias);
  for (const MetricLabel& label : figure.labels) {
    if (!label.name.empty()) labels.push_back({std::string(label.name), std::string(label.value)});
  }
  families->Add(static_cast<double>(value) * figure.scale, std::move(labels));
}

template <typename Source, typename Message>
void AddFigures(absl::Span<const Figure<Source, Message>> figures, const Source& source, MetricFamilies* families) {
  for (const Figure<Source, Message>& figure : figures) {
    if (!figure.metric.empty()) AddSeries(figure, figure.value(source), {}, families);
  }
}

void AddPoolFigures(const Occupancy& occupancy, MetricFamilies* families) {
  for (const PoolFigure& figure : PoolFigures()) {
    if (figure.metric.empty()) continue;
    for (size_t k = 0; k < kNumCacheKinds; ++k) {
      const CacheKind kind = KindAt(k);
      AddSeries(figure, SumOver(occupancy, kind, figure.value), {PoolLabel(CacheKindName(kind))}, families);
    }
  }
}

// The families below are not sums of one number per pool, so the table has no line for them.

void AddTokens(const Occupancy& occupancy, int64_t block_tokens, MetricFamilies* families) {
  families->Start(Type::kGauge, "berth_cache_tokens",
                  "Tokens by pool and state: of sequences (live; a shared token counts for each), of the prefix cache "
                  "alone (cached), room for new ones (free)");
  for (CacheKind kind : {CacheKind::kStatic, CacheKind::kSliding, CacheKind::kChunked, CacheKind::kCross}) {
    const auto add = [&](const char* state, auto tokens_of) {
      families->Add(static_cast<double>(SumOver(occupancy, kind, tokens_of)),
                    {PoolLabel(CacheKindName(kind)), {"state", state}});
    };
    add("live", [](const PoolOccupancy& pool) { return pool.live_tokens; });
    add("cached", [](const PoolOccupancy& pool) { return pool.cached_tokens; });
    add("free", [&](const PoolOccupancy& pool) { return pool.free_units * block_tokens; });
  }
}

void AddUsage(const Occupancy& occupancy, MetricFamilies* families) {
  const CacheUsage usage = UsageOf(occupancy);
  families->Start(
      Type::kGauge, "berth_cache_usage_ratio",
      "Bytes that sequences hold, divided by the bytes that the pool could have now. arena: all pools; max: "
      "the fullest of these");
  for (size_t k = 0; k < usage.pools.size(); ++k) families->Add(usage.pools[k], {PoolLabel(CacheKindName(KindAt(k)))});
  families->Add(usage.arena, {PoolLabel("arena")});
  families->Add(usage.max, {PoolLabel("max")});
  families->Start(Type::kGauge, "vllm:kv_cache_usage_perc", "Usage of the fullest pool, from 0 to 1");
  families->Add(usage.max);

  const int64_t free = occupancy.FreeBytes();
  families->Start(Type::kGauge, "berth_cache_fragmentation_ratio",
                  "Free bytes outside the largest free piece, divided by all free bytes; compaction joins the pieces");
  families->Add(Ratio(free - occupancy.largest_hole_bytes, free));
}

// vLLM's number of blocks is fixed. Here it is the number that the arena would hold if keys and values had all of it.
void AddVllmCacheInfo(const Occupancy& occupancy, const CachePlan& plan, MetricFamilies* families) {
  int64_t static_bytes = 0;
  int64_t kv_bytes = 0;
  for (const CacheGroup& group : plan.groups) {
    if (group.of_states()) continue;
    kv_bytes += group.unit_bytes;
    if (group.kind == CacheKind::kStatic) static_bytes += group.unit_bytes;
  }
  const int64_t block_bytes = static_bytes > 0 ? static_bytes : kv_bytes;
  families->Start(Type::kGauge, "vllm:cache_config_info", "Blocks of keys and values that the arena can hold");
  families->Add(1, {{"block_size", absl::StrCat(plan.block_tokens)},
                    {"num_gpu_blocks", absl::StrCat(block_bytes > 0 ? occupancy.arena_bytes / block_bytes : 0)}});
}

// A tenant without a name has a label all the same: Prometheus takes an empty label for none. A client chooses its
// tenant's name. If that is one of the two words here, it gets quotes, so that no two series have equal labels.
std::string TenantLabel(const std::string& tenant) {
  if (tenant.empty()) return "(none)";
  const bool taken = tenant == "(none)" || tenant == "other" || tenant[0] == '"';
  return taken ? absl::StrCat("\"", tenant, "\"") : tenant;
}

// The tenants with the largest shares by name, the others together.
void AddTenants(const TenantShares& tenants, MetricFamilies* families) {
  const auto add = [&](absl::string_view name, absl::string_view help, auto value) {
    families->Start(Type::kGauge, name, help);
    for (const TenantShare& share : tenants.largest) {
      families->Add(value(share), {{"tenant", TenantLabel(share.tenant)}});
    }
    families->Add(value(tenants.others), {{"tenant", "other"}});
  };
  families->Start(Type::kGauge, "berth_tenants", "Tenants with a request that waits or runs");
  families->Add(static_cast<double>(tenants.num_tenants));
  add("berth_tenant_share_ratio",
      "Share of the work of the last minute that the tenant got, by cache_salt: the 10 largest, and other",
      [](const TenantShare& share) { return share.share; });
  add("berth_tenant_deficit_tokens",
      "Tokens that a waiting tenant is behind the waiting tenant that got most, after weights. other: the largest of "
      "the rest",
      [](const TenantShare& share) { return share.deficit; });
  add("berth_tenant_wait_seconds",
      "Time since a request of a waiting tenant was admitted; 0: none waits. other: the longest",
      [](const TenantShare& share) { return absl::ToDoubleSeconds(share.wait); });
}

}  // namespace

CacheUsage UsageOf(const Occupancy& occupancy) {
  std::array<int64_t, kNumCacheKinds> held_by_kind{};
  std::array<bool, kNumCacheKinds> present{};
  int64_t held = 0;
  int64_t obtainable = occupancy.unassigned_free_bytes;  // bytes that no sequence holds can serve any kind
  for (const PoolOccupancy& pool : occupancy.pools) {
    const auto kind = static_cast<size_t>(pool.kind);
    const int64_t pool_held = pool.bytes(pool.live_units + pool.shared_units);
    present[kind] = true;
    held_by_kind[kind] += pool_held;
    held += pool_held;
    obtainable += pool.bytes(pool.free_units + pool.cached_units);
  }
  CacheUsage usage;
  for (size_t k = 0; k < kNumCacheKinds; ++k) {
    if (!present[k]) continue;
    const int64_t could_have = held_by_kind[k] + obtainable;
    usage.pools[k] = could_have > 0 ? Ratio(held_by_kind[k], could_have) : 1;  // other kinds hold everything: full
    usage.max = std::max(usage.max, usage.pools[k]);
  }
  usage.arena = Ratio(held, held + obtainable);
  usage.max = std::max(usage.max, usage.arena);
  return usage;
}

void CollectLoad(const ServerLoad& load, const CachePlan& plan, MetricFamilies* families) {
  const Occupancy& occupancy = load.engine.occupancy;
  families->StartSection("Engine");
  AddFigures(EngineFigures(), load, families);
  families->StartSection("Tenants");
  AddTenants(load.tenants, families);
  families->StartSection("Cache");
  AddPoolFigures(occupancy, families);
  AddFigures(ArenaFigures(), occupancy, families);
  AddTokens(occupancy, plan.block_tokens, families);
  AddUsage(occupancy, families);
  AddVllmCacheInfo(occupancy, plan, families);
  families->StartSection("Tiers and sessions");
  AddFigures(TierFigures(), load, families);
  families->StartSection("Structured output");
  AddFigures(GrammarFigures(), load, families);
  families->StartSection("Texts and clients");
  AddFigures(TextFigures(), load, families);
  AddFigures(DeliveryFigures(), load, families);
}

}  // namespace berth
