#include "client/load/lengths.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth::cli {
namespace {

constexpr int32_t kMaxLength = std::numeric_limits<int32_t>::max();

absl::Status Malformed() {
  return absl::InvalidArgumentError(
      "expected fixed:N, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MAX], or several of them as W*LENGTHS+W*LENGTHS");
}

absl::StatusOr<int64_t> ParseLength(absl::string_view text) {
  int32_t length = 0;
  if (!absl::SimpleAtoi(text, &length) || length < 1) {
    return absl::InvalidArgumentError(absl::StrCat("length '", text, "' is not a whole number from 1 to ", kMaxLength));
  }
  return length;
}

}  // namespace

LengthDistribution LengthDistribution::Fixed(int64_t length) {
  LengthDistribution lengths;
  lengths.min_ = lengths.max_ = length;
  lengths.text_ = absl::StrCat("fixed:", length);
  return lengths;
}

absl::StatusOr<LengthDistribution> LengthDistribution::ParseLognormal(absl::string_view mean_text,
                                                                      absl::string_view sigma_text) {
  LengthDistribution lengths;
  lengths.kind_ = Kind::kLognormal;
  lengths.max_ = kMaxLength;
  double mean = 0;
  if (!absl::SimpleAtod(mean_text, &mean) || !(mean >= 1) || mean > static_cast<double>(lengths.max_)) {
    return absl::InvalidArgumentError(absl::StrCat("mean '", mean_text, "' is not a number of 1 or more"));
  }
  if (!absl::SimpleAtod(sigma_text, &lengths.sigma_) || !(lengths.sigma_ >= 0) || lengths.sigma_ > 10) {
    return absl::InvalidArgumentError(absl::StrCat("sigma '", sigma_text, "' is not a number from 0 to 10"));
  }
  lengths.mu_ = std::log(mean) - lengths.sigma_ * lengths.sigma_ / 2;  // E[exp(N(mu, sigma^2))] = exp(mu + sigma^2/2)
  return lengths;
}

absl::StatusOr<LengthDistribution> LengthDistribution::ParseMixture(absl::string_view text) {
  LengthDistribution mixture;
  for (const absl::string_view part : absl::StrSplit(text, '+')) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(part, absl::MaxSplits('*', 1));
    double weight = 0;
    if (!absl::SimpleAtod(halves.first, &weight) || !(weight > 0) || weight > 1e9) {
      return absl::InvalidArgumentError(absl::StrCat("weight '", halves.first, "' is not a number above 0"));
    }
    absl::StatusOr<LengthDistribution> lengths = Parse(halves.second);
    if (!lengths.ok()) return lengths;
    mixture.mixture_.emplace_back(weight, *std::move(lengths));
  }
  mixture.text_ = std::string(text);
  return mixture;
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(absl::string_view text) {
  if (absl::StrContains(text, '*')) return ParseMixture(text);
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  const bool lognormal = parts[0] == "lognormal" && (parts.size() == 3 || parts.size() == 4);
  const bool bounds = (parts[0] == "fixed" && parts.size() == 2) || (parts[0] == "uniform" && parts.size() == 3);
  if (!lognormal && !bounds) return Malformed();

  absl::StatusOr<LengthDistribution> lengths =
      lognormal ? ParseLognormal(parts[1], parts[2]) : absl::StatusOr<LengthDistribution>(LengthDistribution());
  if (!lengths.ok()) return lengths;
  if (bounds) {
    const auto min = ParseLength(parts[1]);
    if (!min.ok()) return min.status();
    lengths->min_ = *min;
  }
  if (parts.size() != 3 || bounds) {
    const auto max = ParseLength(parts.back());
    if (!max.ok()) return max.status();
    lengths->max_ = *max;
  }
  if (lengths->min_ > lengths->max_) {
    return absl::InvalidArgumentError(absl::StrCat("min ", lengths->min_, " is above max ", lengths->max_));
  }
  lengths->text_ = std::string(text);
  return lengths;
}

int64_t LengthDistribution::Sample(std::mt19937_64& random) const {
  if (!mixture_.empty()) {
    double sum = 0;
    for (const auto& [weight, lengths] : mixture_) sum += weight;
    double left = std::uniform_real_distribution<double>(0, sum)(random);
    size_t chosen = 0;
    while (chosen + 1 < mixture_.size() && left >= mixture_[chosen].first) left -= mixture_[chosen++].first;
    return mixture_[chosen].second.Sample(random);
  }
  if (kind_ == Kind::kUniform) return std::uniform_int_distribution<int64_t>(min_, max_)(random);
  const double length = std::lognormal_distribution<double>(mu_, sigma_)(random);
  return length >= static_cast<double>(max_) ? max_ : std::max<int64_t>(min_, std::llround(length));
}

absl::Status ParseFlagValue(absl::string_view text, LengthDistribution* lengths) {
  auto parsed = LengthDistribution::Parse(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(text, " is not valid: ", parsed.status().message()));
  }
  *lengths = *std::move(parsed);
  return absl::OkStatus();
}

std::string FormatFlagValue(const LengthDistribution& lengths) { return lengths.text(); }

}  // namespace berth::cli
