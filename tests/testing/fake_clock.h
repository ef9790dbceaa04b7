// A clock that stands still until a test moves it. Thread-safe.
#ifndef BERTH_TESTS_TESTING_FAKE_CLOCK_H_
#define BERTH_TESTS_TESTING_FAKE_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace berth {

class FakeClock {
 public:
  absl::Time Now() const { return absl::FromUnixNanos(nanos_.load()); }
  void Advance(absl::Duration duration) { nanos_ += absl::ToInt64Nanoseconds(duration); }

 private:
  std::atomic<int64_t> nanos_{1'000'000'000'000'000'000};
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_FAKE_CLOCK_H_
