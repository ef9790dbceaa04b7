#include "server/exporter.h"

#include <exception>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/load_metrics.h"
#include "server/metric_families.h"
#include "server/process_metrics.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;

constexpr size_t kNumThreads = 2;

}  // namespace

std::vector<prometheus::MetricFamily> MetricsCollector::Collect() const {
  MetricFamilies families(options_.metrics->options().model_name, options_.metrics->options().vllm_aliases);
  CollectLoad(options_.load(), options_.plan, &families);
  options_.metrics->Collect(&families);
  families.Start(Type::kGauge, "berth_build_info", "What was built");
  families.Add(1, {{"version", options_.version},
                   {"libtorch", options_.libtorch_version},
                   {"cpu_capability", options_.cpu_capability}});
  families.Start(Type::kGauge, "berth_model_info", "What is served");
  families.Add(1, {{"model_type", options_.model.model_type},
                   {"dtype", std::string(DTypeName(options_.model.dtype))},
                   {"device", options_.model.device},
                   {"parameters", absl::StrCat(options_.model.num_parameters)}});
  CollectProcess(&families);
  return families.Take();
}

absl::StatusOr<std::unique_ptr<Exporter>> Exporter::Start(const Address& address, MetricsCollector::Options options) {
  auto exporter = absl::WrapUnique(new Exporter);
  exporter->collector_ = std::make_shared<MetricsCollector>(std::move(options));
  try {
    exporter->exposer_ = std::make_unique<prometheus::Exposer>(address.ToString(), kNumThreads);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString(), ": ", error.what()));
  }
  exporter->exposer_->RegisterCollectable(exporter->collector_);
  return exporter;
}

}  // namespace berth
