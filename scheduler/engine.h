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
#include "cache/cache.h"
#include "cache/occupancy.h"
#include "cache/prefix_log.h"
#include "models/model_runner.h"
#include "scheduler/flight_recorder.h"
#include "scheduler/mutex.h"
#include "scheduler/queue_limits.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/steady_clock.h"
#include "scheduler/step_progress.h"

namespace berth {

// Load of the engine: the queues as of now, everything else as of the end of the last step. server/metrics/load_table.h
// exports every number of it.
struct EngineLoad {
  Scheduler::Counts counts;  // the waiting requests include those that the engine has not taken yet
  HostTier host_tier;
  PrefixTier::Counts prefix_tier;
  int64_t disk_tier_limit_bytes = 0;         // limit of prefix_tier.disk_bytes; 0: there is no disk tier
  int64_t predicted_wait_ms = 0;             // of a new request that goes behind all that wait
  int64_t predicted_wait_new_tenant_ms = 0;  // the same if nothing else of its tenant waits
  // Since start.
  int64_t num_steps = 0;  // without failed ones
  int64_t num_failed_steps = 0;
  int64_t num_device_allocations = 0;  // see ModelRunner
  int64_t num_graph_launches = 0;
  int64_t num_graph_refusals = 0;
  Occupancy occupancy;
};

// One step's figures, for the histograms.
struct StepStats {
  absl::Duration duration;
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  int64_t num_decode_rows = 0;
};

// Receives what the engine produces. Called on the engine thread: must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // `events` may be swapped with an empty vector to take its storage.
  virtual void Deliver(std::vector<TokenEvent>* events) = 0;
  virtual void OnStep(const StepStats& stats) = 0;
};

class Engine {
 public:
  struct Options {
    Scheduler::Options scheduler;
    // Limits of the requests accepted and not yet admitted; see scheduler/queue_limits.h. Further ones are refused.
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

  // Keeps the request out of the steps from the next one on, until Unpause, or until it ends with kUnread after
  // unread_timeout. Does nothing for an unknown or finished key. Take effect in order, after every Submit that has
  // returned.
  void Pause(RequestKey key) { SetPaused(key, true); }
  void Unpause(RequestKey key) { SetPaused(key, false); }

  // Hands the request to the save sink after a later step, if it is to be saved. Does nothing for an unknown or
  // finished key. Takes effect after every Submit that has returned.
  void Save(RequestKey key);

  // Drops the prefixes of `salt`, or all, from the cache and the tiers below it, when the next step starts. Takes
  // effect after every Cancel that has returned. What running sequences use stays theirs, and what they compute later
  // may be kept again. Calls `done` once, on the engine's thread or one of the disk's, when nothing of them is left
  // there. An error names a file that could not be removed. `done` must not block.
  using DropCallback = std::function<void(const FreedBytes& freed, const absl::Status& status)>;
  void DropPrefixes(std::optional<std::string> salt, DropCallback done);

  // Has the cache log what changes in the prefixes of `salt`, from the next step on until UnwatchPrefixes. Gives `done`
  // what they are then, on the engine's thread, before the log has a change of it. `done` must not block.
  using WatchCallback = std::function<void(std::vector<int32_t> words)>;
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
  const FlightRecorder& recorder() const { return recorder_; }
  // The longest sequence (prompt and output) that is accepted.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }
  // The longest input of an encoder that is accepted; 0: the model has none.
  int64_t max_encoder_tokens() const { return max_encoder_tokens_; }

 private:
  // What clients hand to the engine thread.
  struct Cancellation {
    RequestKey key;
    int32_t output;
    FinishReason reason;
  };
  struct Drop {
    std::optional<std::string> salt;
    DropCallback done;
  };
  struct Watch {
    std::string salt;
    std::shared_ptr<PrefixLog> log;  // null: ends the watch
    WatchCallback done;
  };
  struct Inbox {
    std::vector<Request> requests;
    std::vector<Cancellation> cancels;
    std::vector<std::pair<RequestKey, bool>> pauses;  // true: pause, false: unpause
    std::vector<RequestKey> saves;
    std::vector<Drop> drops;
    std::vector<Watch> watches;
    // Whether there is something that cannot wait for the next step.
    bool urgent() const {
      return !requests.empty() || !cancels.empty() || !pauses.empty() || !saves.empty() || !drops.empty() ||
             !watches.empty();
    }
    int64_t num_tokens = 0;  // of the requests' prompts, for encoder and decoder
  };

  Engine(Cache* cache, ModelRunner* runner, EventSink* sink, Options options, std::shared_ptr<StepProgress> progress,
         std::unique_ptr<Scheduler> scheduler);

  absl::Status CheckLimits(const QueueRequest& request, const std::string& tenant, int64_t priority) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds a request that the scheduler does not know yet to what new ones find before them.
  void AddToBacklog(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void SetPaused(RequestKey key, bool paused);

  // The methods below run on the engine thread.
  void Loop();
  // Waits for work from clients or below the arena, and moves the inbox into the scheduler. False: the engine is to
  // stop.
  bool TakeInbox();
  void SwapInbox() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the requests of `inbox`, which no step has seen, to those that wait.
  static void CountInbox(const Inbox& inbox, Scheduler::Counts* counts);
  // Moves what was taken into the scheduler, except the drops.
  void EmptyTaken();
  void DropTaken();
  void WatchTaken();
  // Emits the tokens of the request's progress again. True: the request had ended before, so this is all.
  bool Replay(const Request& request);
  void Step();
  // Completes the record of a step that ended just now.
  void Record(StepRecord record, const Scheduler::Counts& before, int64_t evicted_before);
  // Takes what a step took, for the predictions of waits.
  void Measure(const StepPlan& plan, absl::Duration time);
  // Waits a moment for the disk tier, because every sequence waits for it.
  void WaitForDisk();
  // Returns the error that --fail_step_every asks for. The step has number num_run_.
  absl::Status MadeToFail(bool after) const;
  // Runs the plan. Returns the arena's error where it has one: copies between the steps report errors nowhere else.
  absl::Status RunStep(const StepPlan& plan);
  // Takes in a step that failed. Gives up after kMaxFailedSteps in a row, and at once when the device is lost. A step
  // does not count as long as it may be the fault of one of its requests.
  void FailStep(const absl::Status& error, absl::Time now);
  void PublishCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Publishes the load, then delivers events_. So whoever sees a request's end also sees its bytes returned.
  void PublishAndDeliver();

  Cache* const cache_;
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
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);             // what Submit answers; OK: it accepts
  int64_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;             // accepted, last event not delivered
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);                  // without what is in the inbox
  Backlog backlog_ ABSL_GUARDED_BY(mutex_);                  // with it
  bool by_tenant_ ABSL_GUARDED_BY(mutex_) = false;           // requests are not admitted in order of arrival
  std::vector<TenantQueue> queues_ ABSL_GUARDED_BY(mutex_);  // the parts of backlog_ that wait, if by_tenant_
  WaitRates wait_rates_ ABSL_GUARDED_BY(mutex_);

  // Engine thread only; the vectors keep their storage.
  const std::unique_ptr<Scheduler> scheduler_;
  Inbox taken_;
  StepResult result_;
  std::vector<TokenEvent> events_;
  WaitEstimator wait_estimator_;
  FlightRecorder recorder_;
  Occupancy occupancy_;
  int64_t num_evicted_units_ = 0;  // since the start, as of the load that was published last
  int64_t num_steps_ = 0;
  int64_t num_failed_steps_ = 0;
  int num_failed_in_a_row_ = 0;
  int64_t num_run_ = 0;  // steps, failed ones included

  std::thread thread_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_ENGINE_H_
