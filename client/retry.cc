#include "client/retry.h"

#include <string>

#include "absl/time/clock.h"
#include "base/mutex.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace berth::cli {
namespace {

// Waits. False: Ctrl-C came first.
bool Wait(absl::Duration delay, Interrupt* interrupt) {
  Mutex mutex;
  CondVar fired;
  bool stop = false;
  const Interrupt::Scope scope(interrupt, [&] {
    MutexLock lock(&mutex);
    stop = true;
    fired.Signal();
  });
  const absl::Time until = absl::Now() + delay;
  MutexLock lock(&mutex);
  while (!stop && absl::Now() < until) fired.WaitFor(&mutex, until - absl::Now());
  return !stop;
}

}  // namespace

std::optional<absl::Duration> RetryDelay(const grpc::Status& status) {
  google::rpc::Status details;
  if (status.ok() || !details.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::RetryInfo retry;
    if (!detail.UnpackTo(&retry)) continue;
    return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
  }
  return std::nullopt;
}

void Retries::AddTo(FlagSet* flags) {
  flags->Add(
      "retries", &left_, Between(0, 1000),
      "Send a refused request again up to n times, after the delay that the server gives, if it is at most 30s.");
}

bool Retries::WaitToRetry(const grpc::Status& status, Environment* environment) {
  const std::optional<absl::Duration> delay = RetryDelay(status);
  if (left_ == 0 || !delay.has_value() || *delay > kLongestDelay) return false;
  --left_;
  environment->err << "berth-cli: the server is busy; trying again in " << absl::FormatDuration(*delay) << std::endl;
  interrupted_ = !Wait(*delay, &environment->interrupt);
  return !interrupted_;
}

}  // namespace berth::cli
