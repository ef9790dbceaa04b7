// Searches for the highest rate of arrivals at which a server keeps the latency limits. Thread-compatible.
//
// A rate holds if no request failed and at least 99 % of the requests were within all limits. The search first doubles
// the rate until one does not hold (or halves it until one does), then bisects between the two until they differ by
// less than 5 %. A search can end without such a pair: see CapacityOutcome.
#ifndef BERTH_CLIENT_LOAD_CAPACITY_H_
#define BERTH_CLIENT_LOAD_CAPACITY_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/load/report.h"

namespace berth::cli {

constexpr double kShareWithinLimits = 0.99;

struct Probe {
  double rate = 0;
  double share_within_limits = 0;
  double ttft_p99_seconds = 0;
  double itl_p99_seconds = 0;
  bool held = false;
};

enum class CapacityOutcome {
  kFound,         // between a rate that held and one that did not
  kNoRateHeld,    // not even the lowest of the search: `rate` is 0
  kEachRateHeld,  // up to the highest of the search, as with few requests: the capacity is `rate` or more
  kInterrupted,
};

struct Capacity {
  CapacityOutcome outcome = CapacityOutcome::kInterrupted;
  double rate = 0;  // the highest that held; 0: none did
  std::vector<Probe> probes;
};

// What a run at `rate` showed.
Probe ProbeOf(double rate, const Report& report);

// `run` measures at a rate; false: the search ends there, interrupted. REQUIRES: first_rate > 0.
Capacity SearchCapacity(double first_rate, const std::function<bool(double rate, Probe* probe)>& run);

std::string CapacityText(const Capacity& capacity);
// "outcome" is found, no_rate_held, each_rate_held or interrupted.
nlohmann::ordered_json CapacityJson(const Capacity& capacity);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_CAPACITY_H_
