// Adds the process_... metrics that every Prometheus client library exports. Reads /proc; thread-safe.
#ifndef BERTH_SERVER_METRICS_PROCESS_METRICS_H_
#define BERTH_SERVER_METRICS_PROCESS_METRICS_H_

#include "server/metrics/metric_families.h"

namespace berth {

// Leaves out metrics whose file in /proc cannot be read, as in some sandboxes.
void CollectProcess(MetricFamilies* families);

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_PROCESS_METRICS_H_
