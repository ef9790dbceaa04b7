// Serves GET /metrics to Prometheus. Thread-safe: scrapes run on the exporter's own threads.
//
// A scrape copies the server's load once, adds the counters, and holds no lock while it writes the answer.
#ifndef BERTH_SERVER_METRICS_EXPORTER_H_
#define BERTH_SERVER_METRICS_EXPORTER_H_

#include <prometheus/collectable.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/spec.h"
#include "flags/units.h"
#include "models/model_runner.h"
#include "scheduler/load/engine_load.h"
#include "server/metrics/load_table.h"
#include "server/metrics/metric_families.h"
#include "server/metrics/metrics.h"

class CivetServer;

namespace berth {

// Builds the answer to a scrape.
class MetricsCollector final : public prometheus::Collectable {
 public:
  struct Options {
    const Metrics* metrics = nullptr;  // must outlive the collector
    std::function<ServerLoad()> load;  // called once a scrape
    CachePlan plan;
    ModelInfo model;
    // Labels of berth_build_info.
    std::string version;
    std::string libtorch_version;
    std::string cpu_capability;
  };

  explicit MetricsCollector(Options options) : options_(std::move(options)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;
  // Adds every family.
  void AddTo(MetricFamilies* families) const;

 private:
  const Options options_;
};

class Exporter {
 public:
  // Whether a scrape with this header "Authorization" is answered. Called on the exporter's threads.
  using Admit = std::function<bool(std::optional<absl::string_view> authorization)>;

  // Listens on return. UNAVAILABLE with the address in the message: cannot listen there. Empty `admit`: every scrape is
  // answered.
  static absl::StatusOr<std::unique_ptr<Exporter>> Start(const Address& address, MetricsCollector::Options options,
                                                         Admit admit = nullptr);

  // Ends the scrapes under way and stops listening.
  ~Exporter();

  int port() const { return address_.port; }

 private:
  class Handler;

  explicit Exporter(Address address);

  Address address_;                   // with the real port while it listens
  std::unique_ptr<Handler> handler_;  // before the server, which calls it
  std::unique_ptr<CivetServer> server_;
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_EXPORTER_H_
