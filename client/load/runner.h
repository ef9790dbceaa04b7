// Sends the conversations of a workload, closed or open loop, and collects the records of their requests. A later turn
// of a conversation is sent as soon as the one before has been answered. One thread sends; the streams run on gRPC's
// few callback threads. Thread-safe: Progress() and Cancel() from any thread; Run() once.
#ifndef BERTH_CLIENT_LOAD_RUNNER_H_
#define BERTH_CLIENT_LOAD_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/load/arrivals.h"
#include "client/load/record.h"
#include "client/load/stream_call.h"
#include "client/load/workload.h"

namespace berth::cli {

class Runner {
 public:
  struct Options {
    int64_t concurrency = 1;  // closed loop: conversations at a time
    double rate = 0;          // above 0: open loop, Poisson arrivals of conversations per second
    // Not empty: open loop, when each conversation arrives. In an open loop concurrency is not read.
    std::vector<absl::Duration> arrivals = {};
    int64_t num_requests = 0;                            // 0: no limit
    absl::Duration duration = absl::InfiniteDuration();  // no request is meant to start later
    absl::Duration timeout = absl::InfiniteDuration();   // of a request
    uint64_t seed = 0;                                   // of the arrivals
    int64_t first_conversation = 0;                      // the number of the workload's that comes first
    bool verify = false;
    // Tokens by WorkItem::reference, to compare with; may be empty.
    std::vector<std::vector<int32_t>> references = {};
  };

  struct Progress {
    int64_t sent = 0;
    int64_t done = 0;    // of them, whatever their status
    int64_t failed = 0;  // of those
    int64_t output_tokens = 0;
  };

  // `workload` and `stub` must outlive the runner.
  Runner(Options options, const Workload* workload, v1::Inference::Stub* stub);

  struct Result {
    std::vector<RequestRecord> records;  // in the order the requests ended
    absl::Duration elapsed;              // until the last one's end
    bool cancelled = false;
  };
  // Blocks until every request has ended.
  Result Run();

  // Ends the run: sends nothing more and cancels what is in flight.
  void Cancel();

  Progress GetProgress() const;

 private:
  // A conversation whose last request has been answered.
  struct Answered {
    std::shared_ptr<Conversation> conversation;
    std::vector<int32_t> token_ids;
    absl::Duration at;
  };
  enum class Next { kTurn, kConversation, kEnd };

  absl::Duration Now() const { return absl::FromChrono(StreamCall::Clock::now() - start_); }
  bool open_loop() const { return options_.rate > 0 || !options_.arrivals.empty(); }
  // Waits until there is something to send: a later turn (then fills `*answered`), or a conversation (then fills
  // `*intended` with its start). kEnd: there is nothing any more.
  Next Await(Answered* answered, absl::Duration* intended);
  // When the next conversation of an open loop arrives; absent: there is none.
  std::optional<absl::Duration> NextArrival();
  bool MayStartConversation() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartConversation(absl::Duration intended);
  void ContinueConversation(Answered answered);
  void Send(std::shared_ptr<Conversation> conversation, WorkItem item, std::optional<absl::Duration> intended);
  // The request of `conversation` has ended.
  void Finish(std::shared_ptr<Conversation> conversation, RequestRecord record);
  void EndConversation();
  // Destroys finished calls on the sending thread, before Run() returns. A call's context holds the channel; a gRPC
  // thread that released it last would wait for its own end.
  void DestroyFinished();

  const Options options_;
  const Workload* const workload_;
  v1::Inference::Stub* const stub_;
  StreamCall::Clock::time_point start_;
  // Only the sending thread uses these.
  PoissonArrivals arrivals_;
  std::optional<absl::Duration> next_arrival_;  // drawn, and not reached yet
  int64_t num_started_ = 0;                     // conversations

  std::atomic<int64_t> output_tokens_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_failed_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_talking_ ABSL_GUARDED_BY(mutex_) = 0;  // conversations that are not over
  std::deque<Answered> answered_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int64_t, std::shared_ptr<StreamCall>> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<StreamCall>> finished_ ABSL_GUARDED_BY(mutex_);
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_RUNNER_H_
