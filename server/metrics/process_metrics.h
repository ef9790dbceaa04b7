// The process_... figures that every Prometheus client exports, from /proc. Thread-safe.
#ifndef BERTH_SERVER_METRICS_PROCESS_METRICS_H_
#define BERTH_SERVER_METRICS_PROCESS_METRICS_H_

#include "server/metrics/metric_families.h"

namespace berth {

// Adds those that can be read; some sandboxes hide some.
void CollectProcess(MetricFamilies* families);

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_PROCESS_METRICS_H_
