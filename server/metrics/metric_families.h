// Builds the answer to one scrape: families of series in Prometheus' own types. Most families also appear under the
// name that vLLM uses, which routers, autoscalers and dashboards look for. Thread-compatible; one per scrape.
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
  using Label = prometheus::ClientMetric::Label;
  using Labels = std::vector<Label>;
  enum class Type { kCounter, kGauge, kHistogram };

  // What docs/metrics.md says about a family beside its own contents.
  struct Note {
    absl::string_view section;
    std::string alias;  // vLLM's name for it
    bool is_alias = false;
  };

  // Families named berth_... and vllm:... carry the label model_name. Without `vllm_aliases`, vllm:... families are
  // left out.
  MetricFamilies(std::string model_name, bool vllm_aliases);

  // Begins a section of docs/metrics.md.
  void StartSection(absl::string_view title) { section_ = title; }

  // Begins a family, to which the next series belong, or continues the current one if `name` is its name. `name` is the
  // full name. With `alias`, every series is added under that name too. A vllm: name begins a family that only vLLM
  // has, or that has other labels there.
  void Start(Type type, absl::string_view name, absl::string_view help, absl::string_view alias = "");

  // Adds one series to the current family. REQUIRES: the family's type is a counter or gauge, or a histogram.
  void Add(double value, Labels labels = {});
  void Add(const HistogramSnapshot& histogram, Labels labels = {});

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }
  // By family, in the order of Take.
  const std::vector<Note>& notes() const { return notes_; }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  size_t NewFamily(Type type, absl::string_view name, absl::string_view help);
  void AddSeries(const prometheus::ClientMetric& series);

  const std::string model_name_;
  const bool vllm_aliases_;
  std::vector<prometheus::MetricFamily> families_;
  std::vector<Note> notes_;
  absl::string_view section_;
  size_t current_ = kNone;
  size_t alias_ = kNone;
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_METRIC_FAMILIES_H_
