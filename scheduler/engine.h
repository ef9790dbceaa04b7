// Runs the model on one thread: takes requests and cancellations, plans, runs and commits steps, and delivers events.
//
// The public methods are thread-safe and never wait for a step, except for WaitUntilIdle. Events are delivered on the
// engine thread, in order per request. Every accepted request ends with exactly one event whose finish != kNone and
// whose outputs_left is 0.
#ifndef BERTH_SCHEDULER_ENGINE_H_
#define BERTH_SCHEDULER_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "cache/cache.h"
#include "cache/occupancy.h"
#include "cache/prefix_log.h"
#include "models/model_runner.h"
#include "scheduler/engine_inbox.h"
#include "scheduler/event_sink.h"
#include "scheduler/faulty_runner.h"
#include "scheduler/load/engine_load.h"
#include "scheduler/load/flight_recorder.h"
#include "scheduler/load/queue_limits.h"
#include "scheduler/load/queue_outlook.h"
#include "scheduler/load/step_log.h"
#include "scheduler/load/step_progress.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace berth {

class Engine {
 public:
  struct Options {
    Scheduler::Options scheduler;
    // Limits of the requests accepted and not yet admitted; see scheduler/load/queue_limits.h. Further ones are
    // refused.
    int64_t max_queue = 256;
    int64_t max_queued_tokens = 0;                     // 0: no limit
    absl::Duration max_wait = absl::ZeroDuration();    // 0: no limit
    absl::Duration unread_timeout = absl::Minutes(1);  // after this long a paused request ends with kUnread
    // Check the cache's invariants after every step, and crash if one is broken. For tests and debug builds.
    bool check_integrity = false;
    // For tests: fail every n-th step, before or after the model has run it; 0: none.
    int64_t fail_step_every = 0;
    std::function<absl::Time()> now = SteadyNow;  // tests inject a clock
    // Called on the engine thread, once, when the device is lost (DATA_LOSS of a step or of the arena). It may end the
    // process. If it returns, the engine stops.
    std::function<void(const absl::Status&)> on_device_lost = [](const absl::Status&) {};
  };

  // All pointers must outlive the engine. INVALID_ARGUMENT names the option that makes no sense.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Cache* cache, ModelRunner* runner, EventSink* sink,
                                                        Options options);
  // Cancels the requests that are left, delivers the last events and joins the thread.
  ~Engine();

  // Starts the thread.
  void Start();
  // Starts it with `first`, before any step, and returns what that returned. Libraries keep things for each thread,
  // such as the handles of cuBLAS: what they set up for the engine's steps must be set up on its thread. After an
  // error, destroy the engine.
  absl::Status Start(const std::function<absl::Status()>& first);

  // Accepts the request. RESOURCE_EXHAUSTED with a Refusal: see CheckQueue. UNAVAILABLE: the engine drains or has
  // failed. INVALID_ARGUMENT: see ValidateRequest and Scheduler::CheckRequest. REQUIRES: no live request has its key.
  absl::Status Submit(Request request);
  // What Submit would answer to a request if only this is known of it. `tenant` is its cache_salt.
  absl::Status CheckArrival(absl::Time deadline, const std::string& tenant, int64_t priority) const;

  // Ends the request with `reason` when the next step starts. Does nothing for an unknown or finished key. Takes effect
  // after every Submit that has returned.
  void Cancel(RequestKey key, FinishReason reason = FinishReason::kCancelled) {
    CancelOutput(key, Scheduler::kAllOutputs, reason);
  }
  // Cancels one output of several.
  void CancelOutput(RequestKey key, int32_t output, FinishReason reason);

  // Keeps the request out of the steps from the next one on, until it is not paused any more, or ends with kUnread
  // after unread_timeout. Does nothing for an unknown or finished key. Calls take effect in order, after every Submit
  // that has returned.
  void SetPaused(RequestKey key, bool paused);

  // Hands the request to the save sink after a later step, if it is to be saved. Does nothing for an unknown or
  // finished key. Takes effect after every Submit that has returned.
  void Save(RequestKey key);

  // Drops the prefixes of `salt`, or all, from the cache and the tiers below it, when the next step starts. Takes
  // effect after every Cancel that has returned. What running sequences use stays theirs, and what they compute later
  // may be kept again. Calls `done` once, on the engine's thread or one of the disk's, when nothing of them is left
  // there. An error names a file that could not be removed. `done` must not block.
  void DropPrefixes(std::optional<std::string> salt, DropCallback done);

  // Has the cache log what changes in the prefixes of `salt`, from the next step on until UnwatchPrefixes. Gives `done`
  // what they are then, on the engine's thread, before the log has a change of it. `done` must not block.
  void WatchPrefixes(std::string salt, std::shared_ptr<PrefixLog> log, WatchCallback done);
  void UnwatchPrefixes(std::string salt) { WatchPrefixes(std::move(salt), nullptr, nullptr); }

  // Refuses new requests from now on. Accepted ones continue.
  void Drain();
  // Waits until no request is left or the timeout has passed. True when none is left.
  bool WaitUntilIdle(absl::Duration timeout);

  EngineLoad GetLoad() const;
  // Where the engine's thread is. Outlives the engine as long as it is held.
  std::shared_ptr<const StepProgress> progress() const { return progress_; }
  // False once the device is lost, or steps have failed in a way that the device does not recover from.
  bool healthy() const { return healthy_.load(std::memory_order_acquire); }
  const FlightRecorder& recorder() const { return step_log_.recorder(); }
  // The longest sequence (prompt and output) that is accepted.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }
  // The longest input of an encoder that is accepted; 0: the model has none.
  int64_t max_encoder_tokens() const { return max_encoder_tokens_; }

 private:
  Engine(Cache* cache, ModelRunner* runner, EventSink* sink, Options options, std::shared_ptr<StepProgress> progress,
         std::unique_ptr<Scheduler> scheduler);

  absl::Status CheckLimits(const QueueRequest& request, const std::string& tenant, int64_t priority) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The methods below run on the engine thread.
  void Loop();
  // Waits for work from clients or below the arena, and moves the inbox into the scheduler. False: the engine is to
  // stop.
  bool TakeInbox();
  void SwapInbox() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves what was taken into the scheduler, except the drops.
  void EmptyTaken();
  void DropTaken();
  void WatchTaken();
  // Emits the tokens of the request's progress again. True: the request had ended before, so this is all.
  bool Replay(const Request& request);
  void Step();
  // The phases of a step. Begin ends what is due, and does what can be done without a step. False: there is none.
  bool Begin(absl::Time now);
  const StepPlan& Plan(absl::Time now);
  // Returns the arena's error where it has one: copies between the steps report errors nowhere else.
  absl::Status Run(const StepPlan& plan);
  void Commit(const StepPlan& plan, const absl::Status& status);
  // Publishes the load, then delivers events_. So whoever sees a request's end also sees its bytes returned.
  void PublishAndDeliver();
  // Waits a moment for the disk tier, because every sequence waits for it.
  void WaitForDisk();
  // Takes in a step that failed. Gives up after kMaxFailedSteps in a row, and at once when the device is lost. A step
  // does not count as long as it may be the fault of one of its requests.
  void FailStep(const absl::Status& error, absl::Time now);
  void PublishCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Cache* const cache_;
  std::unique_ptr<FaultyRunner> faulty_runner_;  // null without --fail_step_every
  ModelRunner* const runner_;
  EventSink* const sink_;
  const Options options_;
  const std::shared_ptr<StepProgress> progress_;
  const int64_t max_sequence_tokens_;
  const int64_t max_encoder_tokens_;
  std::atomic<bool> healthy_{true};

  mutable Mutex mutex_;
  CondVar work_;  // the inbox has something, or stopping_
  CondVar idle_;  // num_open_ is 0
  EngineInbox inbox_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);  // what Submit answers; OK: it accepts
  int64_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;  // accepted, last event not delivered
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);       // without what is in the inbox
  QueueOutlook outlook_ ABSL_GUARDED_BY(mutex_);  // with it

  // Engine thread only; the vectors keep their storage.
  const std::unique_ptr<Scheduler> scheduler_;
  EngineInbox taken_;
  StepResult result_;
  std::vector<TokenEvent> events_;
  std::vector<TenantQueue> queues_;  // what waits of each tenant; swapped with that of outlook_
  StepLog step_log_;
  Occupancy occupancy_;
  int64_t num_evicted_units_ = 0;  // since the start, as of the load that was published last
  int num_failed_in_a_row_ = 0;

  std::thread thread_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_ENGINE_H_
