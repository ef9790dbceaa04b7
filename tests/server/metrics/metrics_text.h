// Reads Prometheus' text format back, for the tests of what a scrape answers.
#ifndef BERTH_TESTS_SERVER_METRICS_METRICS_TEXT_H_
#define BERTH_TESTS_SERVER_METRICS_METRICS_TEXT_H_

#include <prometheus/text_serializer.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace berth {

// By series as it is written, `name{label="value",...}`. A series written twice becomes NaN.
using SeriesMap = std::map<std::string, double>;

inline SeriesMap ReadSeries(const std::string& text) {
  SeriesMap series;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line.front() == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    const bool ok = absl::SimpleAtod(line.substr(space + 1), &value);
    const bool added = series.emplace(line.substr(0, space), value).second;
    if (!ok || !added) series[std::string(line.substr(0, space))] = std::numeric_limits<double>::quiet_NaN();
  }
  return series;
}

inline std::string ToText(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_METRICS_METRICS_TEXT_H_
