#include "server/metrics/metric_families.h"

#include <limits>

#include "absl/strings/match.h"

namespace berth {
namespace {

prometheus::MetricType PrometheusType(MetricFamilies::Type type) {
  switch (type) {
    case MetricFamilies::Type::kCounter:
      return prometheus::MetricType::Counter;
    case MetricFamilies::Type::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricFamilies::Type::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

MetricFamilies::MetricFamilies(std::string model_name, bool vllm_aliases)
    : model_name_(std::move(model_name)), vllm_aliases_(vllm_aliases) {
  families_.reserve(96);
  notes_.reserve(96);
}

size_t MetricFamilies::NewFamily(Type type, absl::string_view name, absl::string_view help) {
  families_.push_back({std::string(name), std::string(help), PrometheusType(type), {}});
  notes_.push_back({.section = section_});
  return families_.size() - 1;
}

void MetricFamilies::Start(Type type, absl::string_view name, absl::string_view help, absl::string_view alias) {
  if (current_ != kNone && families_[current_].name == name) return;
  current_ = vllm_aliases_ || !absl::StartsWith(name, "vllm:") ? NewFamily(type, name, help) : kNone;
  alias_ = vllm_aliases_ && !alias.empty() ? NewFamily(type, alias, help) : kNone;
  if (alias_ == kNone) return;
  notes_[current_].alias = std::string(alias);
  notes_[alias_].is_alias = true;
}

void MetricFamilies::Add(double value, Labels labels) {
  prometheus::ClientMetric series;
  series.label = std::move(labels);
  series.counter.value = value;
  series.gauge.value = value;
  AddSeries(series);
}

void MetricFamilies::Add(const HistogramSnapshot& histogram, Labels labels) {
  prometheus::ClientMetric series;
  series.label = std::move(labels);
  uint64_t cumulative = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    cumulative += histogram.counts[i];
    const bool last = i == histogram.bounds.size();
    series.histogram.bucket.push_back(
        {cumulative, last ? std::numeric_limits<double>::infinity() : histogram.bounds[i]});
  }
  series.histogram.sample_count = cumulative;
  series.histogram.sample_sum = histogram.sum;
  AddSeries(series);
}

void MetricFamilies::AddSeries(const prometheus::ClientMetric& series) {
  for (size_t index : {current_, alias_}) {
    if (index == kNone) continue;
    prometheus::MetricFamily& family = families_[index];
    family.metric.push_back(series);
    if (!absl::StartsWith(family.name, "berth_") && !absl::StartsWith(family.name, "vllm:")) continue;
    auto& labels = family.metric.back().label;
    labels.insert(labels.begin(), {"model_name", model_name_});
  }
}

}  // namespace berth
