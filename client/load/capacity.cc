#include "client/load/capacity.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace berth::cli {
namespace {

constexpr double kPrecision = 1.05;
constexpr double kLeastRate = 0.01;
constexpr double kMostRate = 1e6;

CapacityOutcome OutcomeOf(const Capacity& capacity, double lowest_missed) {
  if (capacity.rate == 0) return CapacityOutcome::kNoRateHeld;
  return lowest_missed == 0 ? CapacityOutcome::kEachRateHeld : CapacityOutcome::kFound;
}

const char* NameOf(CapacityOutcome outcome) {
  switch (outcome) {
    case CapacityOutcome::kFound:
      return "found";
    case CapacityOutcome::kNoRateHeld:
      return "no_rate_held";
    case CapacityOutcome::kEachRateHeld:
      return "each_rate_held";
    case CapacityOutcome::kInterrupted:
      return "interrupted";
  }
  return "";
}

std::string ResultText(const Capacity& capacity) {
  switch (capacity.outcome) {
    case CapacityOutcome::kNoRateHeld:
      return "capacity: not found, as no rate held; a low rate needs a longer --duration\n\n";
    case CapacityOutcome::kEachRateHeld:
      return absl::StrFormat(
          "capacity: not found, as each rate up to %.2f arrivals/s held; a probe needs more requests (--requests) or "
          "a longer --duration\n\n",
          capacity.rate);
    case CapacityOutcome::kFound:
    case CapacityOutcome::kInterrupted:
      break;
  }
  return absl::StrFormat("capacity: %.2f arrivals/s\n\n", capacity.rate);
}

}  // namespace

Probe ProbeOf(double rate, const Report& report) {
  const int64_t all = report.num_ok + report.num_failed;
  Probe probe = {.rate = rate, .ttft_p99_seconds = report.ttft_seconds.p99, .itl_p99_seconds = report.itl_seconds.p99};
  if (all > 0) probe.share_within_limits = static_cast<double>(report.num_within_limits) / static_cast<double>(all);
  probe.held = report.num_failed == 0 && probe.share_within_limits >= kShareWithinLimits;
  return probe;
}

Capacity SearchCapacity(double first_rate, const std::function<bool(double rate, Probe* probe)>& run) {
  Capacity capacity;
  double missed = 0;  // the lowest rate that did not hold; 0: none yet
  for (double rate = first_rate; rate >= kLeastRate && rate <= kMostRate;) {
    Probe probe;
    if (!run(rate, &probe)) return capacity;
    capacity.probes.push_back(probe);
    (probe.held ? capacity.rate : missed) = rate;
    if (missed == 0) {
      rate = capacity.rate * 2;
    } else if (capacity.rate == 0) {
      rate = missed / 2;
    } else if (missed <= capacity.rate * kPrecision) {
      break;
    } else {
      rate = (capacity.rate + missed) / 2;
    }
  }
  capacity.outcome = OutcomeOf(capacity, missed);
  return capacity;
}

std::string CapacityText(const Capacity& capacity) {
  std::string text = "arrivals/s  within limits  TTFT p99 ms  ITL p99 ms  held\n";
  for (const Probe& probe : capacity.probes) {
    absl::StrAppendFormat(&text, "%10.2f  %11.1f %%  %11.2f  %10.2f  %s\n", probe.rate, 100 * probe.share_within_limits,
                          1000 * probe.ttft_p99_seconds, 1000 * probe.itl_p99_seconds, probe.held ? "yes" : "no");
  }
  return text + ResultText(capacity);
}

nlohmann::ordered_json CapacityJson(const Capacity& capacity) {
  nlohmann::ordered_json probes = nlohmann::ordered_json::array();
  for (const Probe& probe : capacity.probes) {
    probes.push_back({{"rate", probe.rate},
                      {"share_within_limits", probe.share_within_limits},
                      {"ttft_p99_seconds", probe.ttft_p99_seconds},
                      {"itl_p99_seconds", probe.itl_p99_seconds},
                      {"held", probe.held}});
  }
  return {{"outcome", NameOf(capacity.outcome)}, {"rate", capacity.rate}, {"probes", probes}};
}

}  // namespace berth::cli
