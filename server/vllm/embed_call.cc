// The calls of VllmService that compute an embedding.
#include <memory>
#include <utility>
#include <vector>

#include "server/api/unary_call.h"
#include "server/vllm/embed_messages.h"
#include "server/vllm/messages.h"
#include "server/vllm/vllm_service.h"

namespace berth {

namespace engine = ::vllm::grpc::engine;

// One Embed RPC. `response` is gRPC's, and lives until OnDone. Frees itself there.
class VllmService::EmbedCall final : public UnaryCall, public OutputWriter {
 public:
  EmbedCall(Intake* intake, const engine::EmbedRequest* request, engine::EmbedResponse* response, const Rpc& rpc)
      : UnaryCall(intake->registry()->unread(), rpc, response), response_(response) {
    absl::StatusOr<v1::EmbedRequest> translated = ToBerth(*request, intake->validation());
    if (!translated.ok()) {
      intake->CountRefusal(translated.status());
      End(nullptr, translated.status());
      return;
    }
    request_ = *std::move(translated);
    FreeMessage(request);
    handle_ = intake->Start(&request_, rpc.info(), /*stream=*/false, this);
  }

  void Write(const v1::GenerateResponse*) override {}  // no output, so no messages of one
  void SetEmbedding(std::vector<float> embedding) override { embedding_ = std::move(embedding); }
  void End(v1::GenerateResponse* last, const absl::Status& ended) override {
    absl::Status status = WithContractNames(ended);
    if (status.ok() && embedding_.empty()) status = absl::CancelledError("the request was aborted");
    if (last != nullptr && status.ok()) *response_ = EmbedResponseOf(embedding_, *last);
    Answer(status);
  }

  void OnCancel() override {
    if (handle_ != nullptr) handle_->Cancel();  // null: the request was refused
  }

 private:
  engine::EmbedResponse* const response_;
  v1::EmbedRequest request_;
  std::vector<float> embedding_;
  std::shared_ptr<Intake::Handle> handle_;
};

grpc::ServerUnaryReactor* VllmService::Embed(grpc::CallbackServerContext* context, const engine::EmbedRequest* request,
                                             engine::EmbedResponse* response) {
  return new EmbedCall(options_.intake, request, response, NewRpc("Embed", context));
}

}  // namespace berth
