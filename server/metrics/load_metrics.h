// Adds the metrics that a scrape reads from the engine, the cache and the session files. All come from one copy of
// EngineLoad, so the numbers of one scrape add up. Pure functions; thread-safe.
//
// load_table.h declares the metrics that are plain numbers, and says how to add one.
#ifndef BERTH_SERVER_METRICS_LOAD_METRICS_H_
#define BERTH_SERVER_METRICS_LOAD_METRICS_H_

#include <array>

#include "cache/occupancy.h"
#include "cache/spec.h"
#include "scheduler/load/engine_load.h"
#include "server/metrics/load_table.h"
#include "server/metrics/metric_families.h"

namespace berth {

// How full the cache is. Each number is a ratio of bytes in [0, 1].
struct CacheUsage {
  // By CacheKind: bytes that sequences hold in the kind, divided by those bytes and all bytes that no sequence holds.
  // 0 for a kind that the model does not have.
  std::array<double, kNumCacheKinds> pools{};
  double arena = 0;  // bytes that sequences hold, divided by the bytes that they could hold
  double max = 0;    // the highest of these; 1: some kind cannot grow
};

CacheUsage UsageOf(const Occupancy& occupancy);

// Adds every family, with every series, also those at 0. The series of berth_cache_bytes add up to
// berth_cache_arena_bytes.
void CollectLoad(const ServerLoad& load, const CachePlan& plan, MetricFamilies* families);

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_LOAD_METRICS_H_
