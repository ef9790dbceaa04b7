// berth.v1.Sessions on gRPC's callback API: requests that outlive their call, kept by Sessions and resumed
// through the Intake. Thread-safe; no reaction waits for the disk.
#ifndef BERTH_SERVER_API_SESSIONS_SERVICE_H_
#define BERTH_SERVER_API_SESSIONS_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/sessions.grpc.pb.h"
#include "scheduler/engine.h"
#include "server/api/rpc.h"
#include "server/request/intake.h"
#include "server/storage/sessions.h"

namespace berth {

class SessionsService final : public v1::Sessions::CallbackService {
 public:
  // All pointers must outlive the service.
  struct Options {
    Sessions* sessions = nullptr;
    Engine* engine = nullptr;
    Intake* intake = nullptr;
    RpcOptions rpc;
  };

  explicit SessionsService(Options options) : options_(std::move(options)) {}

  grpc::ServerUnaryReactor* Save(grpc::CallbackServerContext* context, const v1::SaveSessionRequest* request,
                                 v1::SaveSessionResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Resume(grpc::CallbackServerContext* context,
                                                         const v1::ResumeSessionRequest* request) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context, const v1::DeleteSessionRequest* request,
                                   v1::DeleteSessionResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListSessionsRequest* request,
                                 v1::ListSessionsResponse* response) override;

 private:
  Rpc NewRpc(const char* method, grpc::CallbackServerContext* context) const;
  // Returns the tenant whose session the call names. `operators`: an operator may name any.
  absl::StatusOr<std::string> Check(const Rpc& rpc, const std::string& session_id, const std::string& named_tenant,
                                    bool operators) const;
  // Logs the call if an operator made it for another tenant.
  void LogCall(const Rpc& rpc, const std::string& named_tenant, const absl::Status& outcome) const;

  const Options options_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_SESSIONS_SERVICE_H_
