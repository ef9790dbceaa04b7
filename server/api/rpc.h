// One call of gRPC's callback API, of any service: who makes it, how it ends, and the metric of both.
// Thread-compatible.
#ifndef BERTH_SERVER_API_RPC_H_
#define BERTH_SERVER_API_RPC_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "server/admission/audit.h"
#include "server/admission/identity.h"
#include "server/api/identity.h"
#include "server/metrics/metrics.h"
#include "server/request/call_info.h"

namespace berth {

// What the calls of all services share. The pointers must outlive them.
struct RpcOptions {
  Metrics* metrics = nullptr;
  const IdentitySource* identities = nullptr;  // null: authentication is off
  Audit* audit = nullptr;                      // null: no operator call is logged
  std::function<absl::Time()> now = SteadyNow;
};

class Rpc {
 public:
  // A call that has just come. `service` and `method` are literals; `options` must outlive this.
  Rpc(const RpcOptions& options, const char* service, const char* method, grpc::CallbackServerContext* context)
      : options_(&options), service_(service), method_(method), context_(context), received_(options.now()) {}

  grpc::CallbackServerContext* context() const { return context_; }
  absl::Time received() const { return received_; }
  absl::Time now() const { return options_->now(); }
  Identity identity() const;
  CallInfo info() const;
  // Writes an operator's call to the audit log. `tenant`: on whom it acts, or "".
  void LogOperatorCall(const std::string& tenant, const absl::Status& outcome) const;

  // The status to give to gRPC. A refusal's advice for a retry is then in the trailing metadata. Call it once, before
  // the call ends.
  grpc::Status End(const absl::Status& status);
  // With a code that ToGrpcStatus would not give.
  grpc::Status EndAs(grpc::StatusCode code, const absl::Status& status);
  // gRPC is done with the call.
  void OnDone() const;
  // Ends the call, whose reactor hears of nothing after that, and calls OnDone.
  void Finish(grpc::ServerUnaryReactor* reactor, const absl::Status& status = absl::OkStatus());
  // Finish with the default reactor, which may be taken once.
  grpc::ServerUnaryReactor* Reply(const absl::Status& status = absl::OkStatus());

 private:
  const RpcOptions* options_;
  const char* service_;
  const char* method_;
  grpc::CallbackServerContext* context_;
  absl::Time received_;
  grpc::StatusCode code_ = grpc::StatusCode::OK;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_RPC_H_
