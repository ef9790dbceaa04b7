// Prints a runner's progress on one line, twice a second, from a thread of its own. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_PROGRESS_H_
#define BERTH_CLIENT_LOAD_PROGRESS_H_

#include <ostream>
#include <thread>

#include "base/mutex.h"
#include "client/load/runner.h"

namespace berth::cli {

class ProgressLine {
 public:
  // On a terminal the line is redrawn, elsewhere each is a new one. `runner` and `out` must outlive it; nothing else
  // may write to `out` meanwhile.
  ProgressLine(const Runner* runner, int64_t num_requests, bool redraw, std::ostream* out);
  // Prints it a last time.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  void Loop();
  void Print();

  const Runner* runner_;
  const int64_t num_requests_;  // 0: no limit
  const bool redraw_;
  std::ostream* out_;
  const StreamCall::Clock::time_point start_ = StreamCall::Clock::now();
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_PROGRESS_H_
