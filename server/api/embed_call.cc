// The calls of InferenceService that compute an embedding.
#include <string>
#include <utility>
#include <vector>

#include "server/api/call_start.h"
#include "server/api/grpc_status.h"
#include "server/api/inference_service.h"

namespace berth {

// One Embed RPC. `response` is gRPC's, and lives until OnDone. Frees itself there.
class InferenceService::EmbedCall final : public grpc::ServerUnaryReactor, public OutputWriter {
 public:
  EmbedCall(InferenceService* service, grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
            v1::EmbedResponse* response)
      : service_(service),
        response_(response),
        received_(service->options_.now()),
        start_(service, context, request, this) {
    start_.Start();
  }

  void Write(const v1::GenerateResponse*) override {}  // no output, so no messages of one
  void SetEmbedding(std::vector<float> embedding) override {
    response_->mutable_embedding()->Add(embedding.begin(), embedding.end());
  }
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    status_ = status;
    if (status.ok() && response_->embedding().empty()) status_ = absl::CancelledError("the request was aborted");
    if (last != nullptr && status_.ok()) {
      response_->set_request_id(std::move(*last->mutable_request_id()));
      response_->mutable_usage()->Swap(last->mutable_usage());
      response_->mutable_timings()->Swap(last->mutable_timings());
    }
    Finish(ToGrpcStatus(status_));
  }

  void OnCancel() override { start_.OnCancel(); }
  void OnDone() override {
    service_->OnRpc("Embed", status_, received_);
    delete this;
  }

 private:
  InferenceService* const service_;
  v1::EmbedResponse* const response_;
  const absl::Time received_;
  absl::Status status_;
  CallStart start_;  // last: it may end the call at once
};

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  return new EmbedCall(this, context, request, response);
}

}  // namespace berth
