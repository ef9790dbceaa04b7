// One call that starts a request and streams its answers: gRPC's reactions on the one side, the output's writer on the
// other. Frees itself in OnDone, which gRPC calls once, after End and the last operation.
#ifndef BERTH_SERVER_API_STREAM_CALL_H_
#define BERTH_SERVER_API_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "berth/v1/inference.pb.h"
#include "server/api/rpc.h"
#include "server/delivery/request_output.h"
#include "server/delivery/unread_answers.h"
#include "server/request/intake.h"

namespace berth {

class StreamCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>, public OutputWriter {
 public:
  // Make it in the service's method: until that returns the call, gRPC does not end it.
  StreamCall(Intake* intake, const Message& message, const Rpc& rpc)
      : unread_(intake->registry()->unread()),
        rpc_(rpc),
        handle_(intake->Start(message, rpc_.info(), /*stream=*/true, this)) {}

  void Write(const v1::GenerateResponse* message) override { StartWrite(message); }
  void SetUnread(int64_t bytes) override {
    unread_->Add(this, bytes, [context = rpc_.context()] { context->TryCancel(); });
  }
  // The call may be gone when it returns.
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    const grpc::Status ended = rpc_.End(status);
    if (last == nullptr) return Finish(ended);
    StartWriteAndFinish(last, grpc::WriteOptions(), ended);
  }

  void OnWriteDone(bool ok) override { handle_->OnWritten(ok); }
  void OnCancel() override { handle_->Cancel(); }
  void OnDone() override {
    unread_->Remove(this);
    rpc_.OnDone();
    delete this;
  }

 private:
  UnreadAnswers* const unread_;
  Rpc rpc_;
  const std::shared_ptr<Intake::Handle> handle_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_STREAM_CALL_H_
