// vllm.grpc.engine.VllmEngine on gRPC's callback API: the contract of the SMG gateway and others (proto/vllm). A thin
// layer over the Intake, which checks and computes each request as if it had come by berth.v1. Thread-safe; no call
// blocks.
#ifndef BERTH_SERVER_VLLM_VLLM_SERVICE_H_
#define BERTH_SERVER_VLLM_VLLM_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "cache/spec.h"
#include "models/generation_config.h"
#include "models/model_runner.h"
#include "scheduler/engine.h"
#include "server/api/rpc.h"
#include "server/request/intake.h"
#include "server/request/operations.h"
#include "server/vllm/kv_events.h"
#include "server/vllm/tokenizer_archive.h"
#include "vllm/engine.grpc.pb.h"

namespace berth {

class VllmService final : public ::vllm::grpc::engine::VllmEngine::CallbackService {
 public:
  // All pointers must outlive the service.
  struct Options {
    Intake* intake = nullptr;  // its text pool also reads the tokenizer's files
    Engine* engine = nullptr;
    Operations* operations = nullptr;
    RpcOptions rpc;
    std::function<bool()> ready = [] { return true; };  // whether requests are taken
    ModelInfo model;
    CachePlan plan;
    GenerationDefaults defaults;
    std::string model_dir;
    std::string version;
    int64_t max_running = 0;
    int64_t prefix_multiple = 1;  // a sequence takes over a multiple of this many tokens from others
  };

  explicit VllmService(Options options);

  grpc::ServerWriteReactor<::vllm::grpc::engine::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const ::vllm::grpc::engine::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const ::vllm::grpc::engine::EmbedRequest* request,
                                  ::vllm::grpc::engine::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const ::vllm::grpc::engine::HealthCheckRequest* request,
                                        ::vllm::grpc::engine::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const ::vllm::grpc::engine::AbortRequest* request,
                                  ::vllm::grpc::engine::AbortResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const ::smg::grpc::common::FlushCacheRequest* request,
                                       ::smg::grpc::common::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const ::vllm::grpc::engine::GetModelInfoRequest* request,
                                         ::vllm::grpc::engine::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const ::vllm::grpc::engine::GetServerInfoRequest* request,
                                          ::vllm::grpc::engine::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const ::vllm::grpc::engine::GetLoadsRequest* request,
                                     ::vllm::grpc::engine::GetLoadsResponse* response) override;
  grpc::ServerWriteReactor<::smg::grpc::common::KvEventBatch>* SubscribeKvEvents(
      grpc::CallbackServerContext* context, const ::smg::grpc::common::SubscribeKvEventsRequest* request) override;
  grpc::ServerWriteReactor<::smg::grpc::common::GetTokenizerChunk>* GetTokenizer(
      grpc::CallbackServerContext* context, const ::smg::grpc::common::GetTokenizerRequest* request) override;

  // Ends the streams that end by themselves only when their clients leave.
  void EndStreams() { kv_events_.Stop(); }

 private:
  class GenerateCall;
  class EmbedCall;  // embed_call.cc
  class KvEventsCall;
  class TokenizerCall;

  // Reads it, unless a call has it still. Blocks.
  absl::StatusOr<std::shared_ptr<const TokenizerArchive>> GetArchive() ABSL_LOCKS_EXCLUDED(mutex_);
  Rpc NewRpc(const char* method, grpc::CallbackServerContext* context) const;

  const Options options_;
  const ::vllm::grpc::engine::GetModelInfoResponse model_info_;
  const ::vllm::grpc::engine::GetServerInfoResponse server_info_;  // without active_requests, is_paused, uptime_seconds
  const absl::Time start_;
  KvEvents kv_events_;

  Mutex mutex_;
  std::weak_ptr<const TokenizerArchive> archive_ ABSL_GUARDED_BY(mutex_);  // many calls hold it once
};

}  // namespace berth

#endif  // BERTH_SERVER_VLLM_VLLM_SERVICE_H_
