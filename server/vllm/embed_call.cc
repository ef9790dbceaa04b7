// The calls of VllmService that compute an embedding.
#include <utility>
#include <vector>

#include "server/api/call_start.h"
#include "server/api/grpc_status.h"
#include "server/vllm/embed_messages.h"
#include "server/vllm/messages.h"
#include "server/vllm/vllm_service.h"

namespace berth {

namespace engine = ::vllm::grpc::engine;

// One Embed RPC. `response` is gRPC's, and lives until OnDone. Frees itself there.
class VllmService::EmbedCall final : public grpc::ServerUnaryReactor, public OutputWriter {
 public:
  EmbedCall(VllmService* service, grpc::CallbackServerContext* context, const engine::EmbedRequest* request,
            engine::EmbedResponse* response)
      : service_(service),
        response_(response),
        received_(service->options_.now()),
        start_(service->options_.inference, context, &request_, this) {
    absl::StatusOr<v1::EmbedRequest> translated = ToBerth(*request, service->options_.inference->validation());
    if (!translated.ok()) {
      service->options_.inference->CountRefusal(translated.status());
      End(nullptr, translated.status());
      return;
    }
    request_ = *std::move(translated);
    start_.Start();
  }

  void Write(const v1::GenerateResponse*) override {}  // no output, so no messages of one
  void SetEmbedding(std::vector<float> embedding) override { embedding_ = std::move(embedding); }
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    status_ = WithContractNames(status);
    if (status_.ok() && embedding_.empty()) status_ = absl::CancelledError("the request was aborted");
    if (last != nullptr && status_.ok()) *response_ = EmbedResponseOf(embedding_, *last);
    Finish(ToGrpcStatus(status_));
  }

  void OnCancel() override { start_.OnCancel(); }
  void OnDone() override {
    service_->OnRpc("Embed", status_, received_);
    delete this;
  }

 private:
  VllmService* const service_;
  engine::EmbedResponse* const response_;
  const absl::Time received_;
  v1::EmbedRequest request_;
  std::vector<float> embedding_;
  absl::Status status_;
  InferenceService::CallStart start_;
};

grpc::ServerUnaryReactor* VllmService::Embed(grpc::CallbackServerContext* context, const engine::EmbedRequest* request,
                                             engine::EmbedResponse* response) {
  return new EmbedCall(this, context, request, response);
}

}  // namespace berth
