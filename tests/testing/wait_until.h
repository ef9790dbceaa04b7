// Waits for what other threads and processes do, however slow the machine is. Thread-safe.
#ifndef BERTH_TESTS_TESTING_WAIT_UNTIL_H_
#define BERTH_TESTS_TESTING_WAIT_UNTIL_H_

#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "absl/base/internal/raw_logging.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace berth {

// Nothing that a test waits for takes nearly as long: what has not come by then does not come.
inline constexpr absl::Duration kHangLimit = absl::Minutes(2);

// Returns once the condition holds. Asks every millisecond. After kHangLimit, ends the process with a message that
// names `what`, because the test would only hang elsewhere.
inline void WaitUntil(const std::function<bool()>& condition, const char* what) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(kHangLimit);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) ABSL_RAW_LOG(FATAL, "waited in vain for %s", what);
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// For calls that block without a limit: while it lives, it ends the process after kHangLimit, as WaitUntil does. A call
// over gRPC is not given a deadline instead, because the server acts on it.
class HangWatch {
 public:
  explicit HangWatch(const char* what)
      : thread_([what, over = over_.get_future()] {
          const bool in_time = over.wait_for(absl::ToChronoMilliseconds(kHangLimit)) == std::future_status::ready;
          if (!in_time) ABSL_RAW_LOG(FATAL, "waited in vain for %s", what);
        }) {}
  ~HangWatch() {
    over_.set_value();
    thread_.join();
  }
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

 private:
  std::promise<void> over_;
  std::thread thread_;
};

// Waits like WaitUntil, but up to a deadline of the test's own. Whether the condition held before it.
inline bool HoldsBefore(absl::Time deadline, const std::function<bool()>& condition) {
  while (absl::Now() < deadline) {
    if (condition()) return absl::Now() < deadline;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

// For tests of what happens when a time is over, which must not be over too soon. Calls `attempt` with 50 ms, then with
// twice as much, and so on, until it returns that `what` came before the time was over. Each attempt starts afresh.
inline void TryLonger(const std::function<bool(absl::Duration time)>& attempt, const char* what) {
  for (absl::Duration time = absl::Milliseconds(50); !attempt(time); time *= 2) {
    if (time > kHangLimit / 2) ABSL_RAW_LOG(FATAL, "waited in vain for %s", what);
  }
}

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_WAIT_UNTIL_H_
