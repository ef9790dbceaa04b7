// Processes for work that may need any amount of memory, stack or time, such as rendering a chat template. Each has
// limits. If it ends, its work fails, and the server stays up.
//
// Start() forks a small process from which the workers are forked later, so it must come before the program has other
// threads or much memory. It and its workers end with the program. Thread-safe after Start.
#ifndef BERTH_TEXT_SANDBOX_H_
#define BERTH_TEXT_SANDBOX_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "text/encode_bounds.h"

namespace berth {

class Sandbox {
 public:
  // Runs in a worker, which has one thread. May keep what it needs for the next call.
  using Function = std::string (*)(const std::vector<std::string>& arguments);
  struct Options {
    Function function = nullptr;
    int64_t memory_bytes = int64_t{512} << 20;   // of a worker, beyond what it has at its start
    absl::Duration timeout = absl::Seconds(10);  // of one call
  };

  // UNAVAILABLE: no process could be started. REQUIRES: this process has one thread.
  static absl::StatusOr<std::unique_ptr<Sandbox>> Start(const Options& options);
  // Ends the processes.
  ~Sandbox() ABSL_LOCKS_EXCLUDED(mutex_);
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Returns what the function returns in a worker that has no other call. RESOURCE_EXHAUSTED: the worker ended, over
  // its memory, stack or time; CANCELLED: `stop` said so, and the worker ends; UNAVAILABLE: no worker could be started.
  absl::StatusOr<std::string> Call(const std::vector<std::string>& arguments, const StopCheck& stop) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options& options() const { return options_; }

 private:
  Sandbox(const Options& options, int control, pid_t pid) : options_(options), control_(control), pid_(pid) {}

  // The socket of an idle worker, if there is one. It may have ended.
  std::optional<int> TakeIdleWorker() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The socket of a new worker. UNAVAILABLE: it could not be started; CANCELLED.
  absl::StatusOr<int> StartWorker(const StopCheck& stop) const;
  // Calls the worker and keeps it for the next call, or closes its socket. ABORTED: it ended before it had the whole
  // call; RESOURCE_EXHAUSTED: it ended since; CANCELLED.
  absl::StatusOr<std::string> Ask(int worker, const std::vector<std::string>& arguments, const StopCheck& stop) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const int control_;  // socket to the process that forks workers: takes their sockets
  const pid_t pid_;
  mutable Mutex mutex_;
  mutable std::vector<int> idle_ ABSL_GUARDED_BY(mutex_);  // sockets of workers without a call
};

}  // namespace berth

#endif  // BERTH_TEXT_SANDBOX_H_
