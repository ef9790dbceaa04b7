// Builds what one scrape answers: families of series in Prometheus' own model, and the same figures under the names
// that vLLM gave them, which routers, autoscalers and dashboards look for. Thread-compatible; one per scrape.
#ifndef BERTH_SERVER_METRICS_METRIC_FAMILIES_H_
#define BERTH_SERVER_METRICS_METRIC_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/metrics/histogram.h"

namespace berth {

class MetricFamilies {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;
  enum class Type { kCounter, kGauge, kHistogram };

  // Families named berth_... and vllm:... carry the label model_name. Without `vllm_aliases`, no vllm:... is built.
  MetricFamilies(std::string model_name, bool vllm_aliases);

  // Begins a family; what is added next belongs to it. `name` in full: nothing is prefixed or suffixed. With `alias`,
  // every series is added under that name too.
  void Start(Type type, absl::string_view name, absl::string_view help, absl::string_view alias = "");
  // A family that only vLLM has, or that has other labels there.
  void StartAlias(Type type, absl::string_view alias, absl::string_view help);

  // One series of the family begun last. REQUIRES: it is a counter or gauge, or a histogram.
  void Add(double value, Labels labels = {});
  void Add(const HistogramSnapshot& histogram, Labels labels = {});

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  size_t NewFamily(Type type, absl::string_view name, absl::string_view help);
  void AddSeries(const prometheus::ClientMetric& series);

  const std::string model_name_;
  const bool vllm_aliases_;
  std::vector<prometheus::MetricFamily> families_;
  size_t current_ = kNone;
  size_t alias_ = kNone;
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_METRIC_FAMILIES_H_
