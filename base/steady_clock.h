// The time of a clock that cannot be set. Deadlines, waits and measured times use it, so that a wall clock that is set
// back or forward changes none of them. Thread-safe.
#ifndef BERTH_BASE_STEADY_CLOCK_H_
#define BERTH_BASE_STEADY_CLOCK_H_

#include "absl/time/time.h"

namespace berth {

// The wall clock's time at the process's first call, plus the time since. Like CLOCK_MONOTONIC it stands still while
// the machine is suspended.
absl::Time SteadyNow();

}  // namespace berth

#endif  // BERTH_BASE_STEADY_CLOCK_H_
