// Implements berth.v1.Control on gRPC's callback API: describes the model and the server, reports the load, and aborts
// requests by id. Thread-safe; no call blocks.
#ifndef BERTH_SERVER_API_CONTROL_SERVICE_H_
#define BERTH_SERVER_API_CONTROL_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "berth/v1/control.grpc.pb.h"
#include "cache/spec.h"
#include "models/model_runner.h"
#include "scheduler/engine.h"
#include "scheduler/steady_clock.h"
#include "server/api/request_registry.h"
#include "server/metrics/load_table.h"
#include "server/metrics/metrics.h"

namespace berth {

class ControlService final : public v1::Control::CallbackService {
 public:
  // All pointers must outlive the service.
  struct Options {
    Engine* engine = nullptr;
    RequestRegistry* registry = nullptr;  // shared with InferenceService
    Metrics* metrics = nullptr;           // may be null
    std::function<GrammarLoad()> grammars = [] { return GrammarLoad(); };
    ModelInfo model;
    CachePlan plan;
    bool has_chat_template = false;
    v1::Limits limits;
    v1::GetServerInfoResponse server;  // without uptime_seconds and draining
    std::function<absl::Time()> now = SteadyNow;
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

 private:
  // Finishes the RPC with `status` and counts it.
  grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const char* method, absl::Time start,
                                  const absl::Status& status = absl::OkStatus());

  const Options options_;
  const v1::GetModelInfoResponse model_info_;
  const absl::Time start_;
  std::atomic<bool> draining_{false};
};

}  // namespace berth

#endif  // BERTH_SERVER_API_CONTROL_SERVICE_H_
