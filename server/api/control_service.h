// Implements berth.v1.Control on gRPC's callback API: describes the model and the server, reports the load, aborts
// requests, and takes the calls of operators. Thread-safe; no call blocks.
#ifndef BERTH_SERVER_API_CONTROL_SERVICE_H_
#define BERTH_SERVER_API_CONTROL_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/control.grpc.pb.h"
#include "cache/spec.h"
#include "models/model_runner.h"
#include "scheduler/engine.h"
#include "server/api/rpc.h"
#include "server/delivery/request_registry.h"
#include "server/metrics/load_table.h"
#include "server/request/operations.h"

namespace berth {

class ControlService final : public v1::Control::CallbackService {
 public:
  // All pointers must outlive the service.
  struct Options {
    Engine* engine = nullptr;
    RequestRegistry* registry = nullptr;  // shared with the intake
    Operations* operations = nullptr;
    RpcOptions rpc;
    std::function<ServerLoad()> load;
    ModelInfo model;
    CachePlan plan;
    bool has_chat_template = false;
    v1::Limits limits;
    v1::GetServerInfoResponse server;  // without uptime_seconds and draining
    // Begins to drain the server, and returns at once.
    std::function<void()> drain = [] {};
    absl::Duration drain_grace;
  };

  explicit ControlService(Options options);

  // Makes GetServerInfo and GetLoad report that the server is draining. Call it with Engine::Drain.
  void SetDraining() { draining_.store(true, std::memory_order_relaxed); }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest* request,
                                    v1::GetLoadResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetSteps(grpc::CallbackServerContext* context, const v1::GetStepsRequest* request,
                                     v1::GetStepsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context, const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* EraseTenant(grpc::CallbackServerContext* context, const v1::EraseTenantRequest* request,
                                        v1::EraseTenantResponse* response) override;

 private:
  Rpc NewRpc(const char* method, grpc::CallbackServerContext* context) const;
  // Logs the operator call, whose reactor is the default one, and finishes it.
  template <typename Response>
  void EndOperation(Rpc rpc, grpc::ServerUnaryReactor* reactor, const std::string& tenant,
                    const absl::StatusOr<Response>& result, Response* response);
  absl::Status AbortRequests(const Identity& identity, const v1::AbortRequest& request, v1::AbortResponse* response);

  const Options options_;
  const v1::GetModelInfoResponse model_info_;
  const absl::Time start_;
  std::atomic<bool> draining_{false};
};

}  // namespace berth

#endif  // BERTH_SERVER_API_CONTROL_SERVICE_H_
