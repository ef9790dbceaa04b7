// Threads of their own for work that takes long: on texts (tokenising, detokenising, rendering chats), and the reading
// of saved sessions. So it holds up no call of another kind, and no health check. Thread-safe. Torch-free.
//
// Clients take turns, and the tenants of a client (see fair_queue.h). One client has all threads but one at most, so
// that its long work delays only itself; a pool of one thread has turns alone. What does not fit in the pool is refused
// at once.
#ifndef BERTH_SERVER_REQUEST_TURN_POOL_H_
#define BERTH_SERVER_REQUEST_TURN_POOL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "scheduler/refusal.h"
#include "scheduler/request.h"
#include "server/request/fair_queue.h"
#include "text/encode_bounds.h"

namespace berth {

// Pieces of work. Except for the gauges, counted since the start.
struct TurnPoolLoad {
  int64_t waiting = 0;        // gauge: that no thread has begun
  int64_t waiting_bytes = 0;  // gauge: the bytes of their texts
  int64_t running = 0;        // gauge: that a thread does
  int64_t done = 0;           // that a thread has done
  int64_t refused = 0;        // refused because too many waited
};

class TurnPool {
 public:
  // With OK, does the work, until it is done or `stop` says that it was cancelled or that its deadline has passed. Else
  // the work is not to be done, and the status says why: DEADLINE_EXCEEDED, CANCELLED, or UNAVAILABLE, as the pool
  // stops. Called once, without a lock held.
  using Work = std::function<void(const absl::Status& status, const StopCheck& stop)>;

  struct Options {
    int64_t threads = 2;
    int64_t max_waiting = 1024;                     // pieces of work; of one client at most half
    int64_t max_waiting_bytes = int64_t{64} << 20;  // of their texts; of one client at most half. One always fits
    std::string what = "texts";                     // that wait, for the message of a refusal
    RefusalReason refusal = RefusalReason::kTexts;  // of what does not fit
    std::function<absl::Time()> now = SteadyNow;
  };
  struct Job {
    RequestKey key = 0;  // for Cancel
    std::string client;  // who takes turns with others: the address
    std::string tenant;  // a name that the client gives, or ""
    int64_t bytes = 0;   // of the text
    absl::Time deadline = absl::InfiniteFuture();
    Work work;
  };

  explicit TurnPool(Options options);
  // Stops, and waits for the work under way.
  ~TurnPool() ABSL_LOCKS_EXCLUDED(mutex_);
  TurnPool(const TurnPool&) = delete;
  TurnPool& operator=(const TurnPool&) = delete;

  // Calls `job.work` on one of the pool's threads when its turn comes. RESOURCE_EXHAUSTED: too much waits; the work is
  // not called then. After Stop, `work` gets UNAVAILABLE at once.
  absl::Status Submit(Job job) ABSL_LOCKS_EXCLUDED(mutex_);

  // If the work waits, calls it with CANCELLED before this returns. If it is under way, tells it to stop.
  void Cancel(RequestKey key) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls what waits with UNAVAILABLE, and tells what is under way to stop.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  TurnPoolLoad load() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // The refusal of work of `bytes`.
  absl::Status TooMuchWaits(const ClientShares::Excess& excess, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next piece of work whose client may have another thread; none: there is none.
  std::optional<Job> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts work that waits no more.
  void Leave(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  FairQueue<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  ClientShares shares_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestKey, std::stop_source> running_ ABSL_GUARDED_BY(mutex_);
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;  // last: see everything above built
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_TURN_POOL_H_
