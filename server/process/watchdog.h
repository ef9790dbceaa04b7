// Watches the engine's steps, or the server's start. After `timeout` without progress within a step, hanging() is true
// and the log says where the step is; after as long again, the process ends. If the step continues before that,
// hanging() is false again.
//
// Time is counted in the watchdog's own wake-ups, each `interval` after the last. A process that was stopped (SIGSTOP)
// or a machine that was suspended wakes it once, however long that took, so neither looks like a step that hangs.
//
// Tick() is the watchdog's thread's; a test that has not called Start calls it itself. hanging() is thread-safe.
#ifndef BERTH_SERVER_PROCESS_WATCHDOG_H_
#define BERTH_SERVER_PROCESS_WATCHDOG_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "scheduler/load/step_progress.h"

namespace berth {

// Logs one line and ends the process with kHangExitCode, without destructors: they would wait for what hangs.
[[noreturn]] void EndOnHang(const std::string& where);

class Watchdog {
 public:
  struct Options {
    // A step of 512 tokens of a model with 8 billion parameters takes 3 minutes on two old cores (50 GFLOP/s).
    absl::Duration timeout = absl::Minutes(10);  // 0: steps are not watched
    const char* what = "a step";                 // for the log, as the next
    const char* flag = "--step_timeout";         // that sets the timeout
    // Called on the watchdog's thread, once, with a text that says where it hangs. If it returns, nothing more happens.
    std::function<void(const std::string& where)> on_hang = EndOnHang;
    std::function<absl::Time()> now = SteadyNow;  // tests inject a clock
  };

  Watchdog(Options options, std::shared_ptr<const StepProgress> progress);
  ~Watchdog() ABSL_LOCKS_EXCLUDED(mutex_);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Starts the thread, unless the timeout is 0.
  void Start();

  // One wake-up.
  void Tick();

  // Whether the step under way has made no progress for the timeout.
  bool hanging() const { return hanging_.load(std::memory_order_acquire); }

  // Between two wake-ups: a twentieth of the timeout, at most a second.
  absl::Duration interval() const { return interval_; }
  // Wake-ups without progress after which a step hangs.
  int64_t limit_ticks() const { return limit_ticks_; }

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::shared_ptr<const StepProgress> progress_;
  const absl::Duration interval_;
  const int64_t limit_ticks_;
  std::atomic<bool> hanging_{false};

  // The watchdog's thread.
  uint64_t last_beat_ = 0;
  int64_t num_ticks_ = 0;  // without progress
  std::string where_;

  Mutex mutex_;
  CondVar closing_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_WATCHDOG_H_
