#include "server/api/inference_service.h"

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/api/stream_call.h"
#include "server/api/unary_call.h"
#include "server/request/message.h"
#include "server/request/validation.h"

namespace berth {

// One Complete RPC: a StreamCall's request, with all output in one answer. `response` is gRPC's, and lives until
// OnDone. Frees itself there.
class InferenceService::CompleteCall final : public UnaryCall, public OutputWriter {
 public:
  CompleteCall(Intake* intake, const v1::GenerateRequest* request, v1::GenerateResponse* response, const Rpc& rpc)
      : UnaryCall(intake->registry()->unread(), rpc, response),
        response_(response),
        handle_(intake->Start(request, rpc.info(), /*stream=*/false, this)) {}

  void Write(const v1::GenerateResponse*) override {}  // an output that does not stream has an End only
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    if (last != nullptr && status.ok()) response_->Swap(last);
    Answer(status);
  }

  void OnCancel() override { handle_->Cancel(); }

 private:
  v1::GenerateResponse* const response_;
  const std::shared_ptr<Intake::Handle> handle_;
};

// One Embed RPC. `response` is gRPC's, and lives until OnDone. Frees itself there.
class InferenceService::EmbedCall final : public UnaryCall, public OutputWriter {
 public:
  EmbedCall(Intake* intake, const v1::EmbedRequest* request, v1::EmbedResponse* response, const Rpc& rpc)
      : UnaryCall(intake->registry()->unread(), rpc, response),
        response_(response),
        handle_(intake->Start(request, rpc.info(), /*stream=*/false, this)) {}

  void Write(const v1::GenerateResponse*) override {}  // no output, so no messages of one
  void SetEmbedding(std::vector<float> embedding) override {
    response_->mutable_embedding()->Add(embedding.begin(), embedding.end());
  }
  void End(v1::GenerateResponse* last, const absl::Status& ended) override {
    absl::Status status = ended;
    if (status.ok() && response_->embedding().empty()) status = absl::CancelledError("the request was aborted");
    if (last != nullptr && status.ok()) {
      response_->set_request_id(std::move(*last->mutable_request_id()));
      response_->mutable_usage()->Swap(last->mutable_usage());
      response_->mutable_timings()->Swap(last->mutable_timings());
    }
    Answer(status);
  }

  void OnCancel() override { handle_->Cancel(); }

 private:
  v1::EmbedResponse* const response_;
  const std::shared_ptr<Intake::Handle> handle_;
};

// One Tokenize or Detokenize RPC, answered on a thread of the text pool. Frees itself in OnDone.
class InferenceService::TextCall final : public UnaryCall {
 public:
  // `answer` sets the response.
  TextCall(Intake* intake, const google::protobuf::Message& request, const google::protobuf::Message* response,
           const Rpc& rpc, std::function<absl::Status(const StopCheck& stop)> answer)
      : UnaryCall(intake->registry()->unread(), rpc, response),
        intake_(intake),
        call_(rpc.info()),
        key_(intake_->registry()->NewKey()),
        answer_(std::move(answer)) {
    absl::Status s = intake_->SubmitText(
        key_, call_, /*named_tenant=*/"", static_cast<int64_t>(request.SpaceUsedLong()),
        [this](const absl::Status& waited, const StopCheck& stop) { End(waited.ok() ? answer_(stop) : waited); });
    if (!s.ok()) End(std::move(s));
  }

  void OnCancel() override {
    client_left_.store(true, std::memory_order_relaxed);
    intake_->texts()->Cancel(key_);
  }

 private:
  void End(absl::Status status) {
    if (absl::IsCancelled(status) && rpc().now() >= call_.deadline) {
      status = absl::DeadlineExceededError("the deadline passed before the text was done");
    } else if (absl::IsCancelled(status) && !client_left_.load(std::memory_order_relaxed)) {
      status = absl::UnavailableError("the server is shutting down");
    }
    intake_->CountRefusal(status);
    Answer(status);
  }

  Intake* const intake_;
  const CallInfo call_;
  const RequestKey key_;
  const std::function<absl::Status(const StopCheck& stop)> answer_;
  std::atomic<bool> client_left_{false};
};

Rpc InferenceService::NewRpc(const char* method, grpc::CallbackServerContext* context) const {
  return {rpc_, "berth.v1.Inference", method, context};
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                           const v1::GenerateRequest* request) {
  return new StreamCall(intake_, request, NewRpc("Generate", context));
}

grpc::ServerUnaryReactor* InferenceService::Complete(grpc::CallbackServerContext* context,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  return new CompleteCall(intake_, request, response, NewRpc("Complete", context));
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  return new EmbedCall(intake_, request, response, NewRpc("Embed", context));
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const auto answer = [=, this](const StopCheck& stop) {
    absl::StatusOr<v1::TokenizeResponse> tokens = berth::Tokenize(*request, intake_->validation(), stop);
    FreeMessage(request);
    if (tokens.ok()) *response = *std::move(tokens);
    return tokens.status();
  };
  return new TextCall(intake_, *request, response, NewRpc("Tokenize", context), answer);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const auto answer = [=, this](const StopCheck& stop) {
    absl::StatusOr<v1::DetokenizeResponse> text = berth::Detokenize(*request, intake_->validation(), stop);
    FreeMessage(request);
    if (text.ok()) *response = *std::move(text);
    return text.status();
  };
  return new TextCall(intake_, *request, response, NewRpc("Detokenize", context), answer);
}

}  // namespace berth
