// Sends a workload, closed or open loop, and collects the records. One thread sends; the streams run on gRPC's few
// callback threads. Thread-safe: Progress() and Cancel() from any thread; Run() once.
#ifndef BERTH_CLIENT_LOAD_RUNNER_H_
#define BERTH_CLIENT_LOAD_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/load/arrivals.h"
#include "client/load/record.h"
#include "client/load/stream_call.h"
#include "client/load/workload.h"
#include "scheduler/mutex.h"

namespace berth::cli {

class Runner {
 public:
  struct Options {
    int64_t concurrency = 1;   // closed loop: requests at a time
    double rate = 0;           // above 0: open loop, Poisson arrivals per second; concurrency is not read
    int64_t num_requests = 0;  // 0: no limit
    absl::Duration duration = absl::InfiniteDuration();  // no request is meant to start later
    absl::Duration timeout = absl::InfiniteDuration();   // of a request
    uint64_t seed = 0;                                   // of the arrivals
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
  absl::Duration Now() const { return absl::FromChrono(StreamCall::Clock::now() - start_); }
  // The intended start of the next request, waiting for it; absent: the run is over.
  std::optional<absl::Duration> NextStart();
  void WaitUntil(absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(int64_t index, absl::Duration intended);
  void Finish(RequestRecord record);
  // Destroys finished calls on the sending thread, before Run() returns. A call's context holds the channel; a gRPC
  // thread that released it last would wait for its own end.
  void DestroyFinished();

  const Options options_;
  const Workload* const workload_;
  v1::Inference::Stub* const stub_;
  StreamCall::Clock::time_point start_;
  PoissonArrivals arrivals_;  // of the sending thread
  std::atomic<int64_t> output_tokens_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_failed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<int64_t, std::shared_ptr<StreamCall>> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<StreamCall>> finished_ ABSL_GUARDED_BY(mutex_);
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_RUNNER_H_
