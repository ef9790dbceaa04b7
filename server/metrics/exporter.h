// Serves GET /metrics to Prometheus. Thread-safe: scrapes run on the exporter's own threads.
//
// One scrape takes one copy of the engine's load and adds the counters; it holds no lock while it writes them out.
#ifndef BERTH_SERVER_METRICS_EXPORTER_H_
#define BERTH_SERVER_METRICS_EXPORTER_H_

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/spec.h"
#include "flags/units.h"
#include "models/model_runner.h"
#include "scheduler/engine.h"
#include "server/metrics/load_metrics.h"
#include "server/metrics/metrics.h"

namespace berth {

// What a scrape answers.
class MetricsCollector final : public prometheus::Collectable {
 public:
  struct Options {
    const Metrics* metrics = nullptr;       // must outlive the collector
    std::function<EngineLoad()> load;       // Engine::GetLoad; called once a scrape
    std::function<SessionLoad()> sessions;  // SessionStore::stats; empty: there are none
    CachePlan plan;
    ModelInfo model;
    std::string version;  // for build_info, as the next two
    std::string libtorch_version;
    std::string cpu_capability;
  };

  explicit MetricsCollector(Options options) : options_(std::move(options)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Options options_;
};

class Exporter {
 public:
  // Listens at once. UNAVAILABLE naming the address when it cannot.
  static absl::StatusOr<std::unique_ptr<Exporter>> Start(const Address& address, MetricsCollector::Options options);

  // Stops listening; a scrape under way is finished first.
  ~Exporter();

  int port() const { return address_.port; }

 private:
  explicit Exporter(Address address) : address_(std::move(address)) {}

  Address address_;                              // with the real port, once it listens
  std::shared_ptr<MetricsCollector> collector_;  // before the exposer, whose scrapes use it
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_EXPORTER_H_
