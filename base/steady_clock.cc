#include "base/steady_clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace berth {
namespace {

struct Start {
  absl::Time wall = absl::Now();
  std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
};

}  // namespace

absl::Time SteadyNow() {
  static const Start start;
  return start.wall + absl::FromChrono(std::chrono::steady_clock::now() - start.steady);
}

}  // namespace berth
