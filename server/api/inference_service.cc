#include "server/api/inference_service.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/api/stream_call.h"
#include "server/request/message.h"
#include "server/request/validation.h"

namespace berth {
namespace {

// Counts an answer's message, and what gRPC makes of it.
void AddUnread(UnreadAnswers* unread, const void* call, const google::protobuf::Message& answer, const Rpc& rpc) {
  const int64_t bytes = 2 * static_cast<int64_t>(answer.ByteSizeLong());
  unread->Add(call, bytes, [context = rpc.context()] { context->TryCancel(); });
}

}  // namespace

// One Complete RPC: a StreamCall's request, with all output in one answer. `response` is gRPC's, and lives until
// OnDone. Frees itself there.
class InferenceService::CompleteCall final : public grpc::ServerUnaryReactor, public OutputWriter {
 public:
  CompleteCall(InferenceService* service, const v1::GenerateRequest* request, v1::GenerateResponse* response,
               const Rpc& rpc)
      : unread_(&service->unread_),
        rpc_(rpc),
        response_(response),
        handle_(service->intake_->Start(request, rpc_.info(), /*stream=*/false, this)) {}

  void Write(const v1::GenerateResponse*) override {}  // an output that does not stream has an End only
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    if (last != nullptr && status.ok()) response_->Swap(last);
    AddUnread(unread_, this, *response_, rpc_);
    Finish(rpc_.End(status));
  }

  void OnCancel() override { handle_->Cancel(); }
  void OnDone() override {
    unread_->Remove(this);
    rpc_.OnDone();
    delete this;
  }

 private:
  UnreadAnswers* const unread_;
  Rpc rpc_;
  v1::GenerateResponse* const response_;
  const std::shared_ptr<Intake::Handle> handle_;
};

// One Embed RPC. `response` is gRPC's, and lives until OnDone. Frees itself there.
class InferenceService::EmbedCall final : public grpc::ServerUnaryReactor, public OutputWriter {
 public:
  EmbedCall(InferenceService* service, const v1::EmbedRequest* request, v1::EmbedResponse* response, const Rpc& rpc)
      : unread_(&service->unread_),
        rpc_(rpc),
        response_(response),
        handle_(service->intake_->Start(request, rpc_.info(), /*stream=*/false, this)) {}

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
    AddUnread(unread_, this, *response_, rpc_);
    Finish(rpc_.End(status));
  }

  void OnCancel() override { handle_->Cancel(); }
  void OnDone() override {
    unread_->Remove(this);
    rpc_.OnDone();
    delete this;
  }

 private:
  UnreadAnswers* const unread_;
  Rpc rpc_;
  v1::EmbedResponse* const response_;
  const std::shared_ptr<Intake::Handle> handle_;
};

// One Tokenize or Detokenize RPC, answered on a thread of the text pool. Frees itself in OnDone.
class InferenceService::TextCall final : public grpc::ServerUnaryReactor {
 public:
  // `answer` sets the response.
  TextCall(InferenceService* service, const google::protobuf::Message& request,
           const google::protobuf::Message* response, const Rpc& rpc,
           std::function<absl::Status(const StopCheck& stop)> answer)
      : intake_(service->intake_),
        unread_(&service->unread_),
        response_(response),
        rpc_(rpc),
        call_(rpc.info()),
        key_(intake_->registry()->NewKey()),
        answer_(std::move(answer)) {
    absl::Status s = intake_->SubmitText(
        key_, call_, /*named_tenant=*/"", static_cast<int64_t>(request.SpaceUsedLong()),
        [this](const absl::Status& waited, const StopCheck& stop) { End(waited.ok() ? answer_(stop) : waited); });
    if (!s.ok()) End(std::move(s));
  }

  void OnCancel() override { intake_->texts()->Cancel(key_); }
  void OnDone() override {
    unread_->Remove(this);
    rpc_.OnDone();
    delete this;
  }

 private:
  void End(absl::Status status) {
    intake_->CountRefusal(status);
    if (absl::IsCancelled(status) && rpc_.now() >= call_.deadline) {
      status = absl::DeadlineExceededError("the deadline passed before the text was done");
    }
    AddUnread(unread_, this, *response_, rpc_);
    Finish(rpc_.End(status));
  }

  Intake* const intake_;
  UnreadAnswers* const unread_;
  const google::protobuf::Message* const response_;
  Rpc rpc_;
  const CallInfo call_;
  const RequestKey key_;
  const std::function<absl::Status(const StopCheck& stop)> answer_;
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
  return new CompleteCall(this, request, response, NewRpc("Complete", context));
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  return new EmbedCall(this, request, response, NewRpc("Embed", context));
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
  return new TextCall(this, *request, response, NewRpc("Tokenize", context), answer);
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
  return new TextCall(this, *request, response, NewRpc("Detokenize", context), answer);
}

}  // namespace berth
