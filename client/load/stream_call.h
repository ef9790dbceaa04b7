// One request of a load test on gRPC's callback threads: times each message, checks it, and hands back the record.
#ifndef BERTH_CLIENT_LOAD_STREAM_CALL_H_
#define BERTH_CLIENT_LOAD_STREAM_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/load/record.h"
#include "client/load/stream_check.h"
#include "client/load/workload.h"

namespace berth::cli {

class StreamCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    Clock::time_point run_start;
    int64_t index = 0;
    // Since run_start; absent: when it is sent.
    std::optional<absl::Duration> intended = {};
    absl::Duration timeout = absl::InfiniteDuration();
    std::atomic<int64_t>* output_tokens;  // counted up as they come; not owned
    bool verify = false;
    bool keep_tokens = false;                         // the record gets them without `verify` too
    const std::vector<int32_t>* reference = nullptr;  // see StreamCheck; not owned
  };
  // Called once, on a gRPC thread, as the call's last act: from then on another thread may destroy the call.
  using Done = std::function<void(RequestRecord)>;

  StreamCall(const Options& options, WorkItem item, Done done);

  // `stub` must live until `done` is called.
  void Start(v1::Inference::Stub* stub);
  // Thread-safe, after Start().
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  absl::Duration Now() const { return absl::FromChrono(Clock::now() - options_.run_start); }
  // A message of content came at `now`.
  void RecordTokens(absl::Duration now, int num_tokens);

  const Options options_;
  const v1::GenerateRequest request_;
  Done done_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  RequestRecord record_;
  std::optional<StreamCheck> check_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_STREAM_CALL_H_
