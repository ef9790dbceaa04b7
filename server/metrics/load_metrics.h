// The gauges, and the counters that the engine keeps: what it and the cache are doing, from one copy of EngineLoad, so
// that every scrape adds up. Pure functions; thread-safe.
#ifndef BERTH_SERVER_METRICS_LOAD_METRICS_H_
#define BERTH_SERVER_METRICS_LOAD_METRICS_H_

#include <array>
#include <cstdint>

#include "cache/occupancy.h"
#include "cache/spec.h"
#include "scheduler/engine.h"
#include "server/metrics/metric_families.h"

namespace berth {

// How full the cache is, each a ratio of bytes in [0, 1].
struct CacheUsage {
  // By CacheKind: what sequences hold of what the kind could have, which is that and all that no sequence holds. 0 for
  // a kind that the model has not.
  std::array<double, kNumCacheKinds> pools{};
  double arena = 0;  // what sequences hold of what they could hold
  double max = 0;    // the highest of these: 1 means that some kind cannot grow
};

CacheUsage UsageOf(const Occupancy& occupancy);

// The files of sessions. All 0 where there are none.
struct SessionLoad {
  int64_t used_bytes = 0;
  int64_t limit_bytes = 0;
  int64_t num_saves = 0;  // since the start
  int64_t num_failed_saves = 0;
};

// Adds every family, series at 0 included. Over pool and state, berth_cache_bytes adds up to berth_cache_arena_bytes.
void CollectLoad(const EngineLoad& load, const SessionLoad& sessions, const CachePlan& plan, MetricFamilies* families);

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_LOAD_METRICS_H_
