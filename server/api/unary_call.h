// A call with one answer, which may be large: it counts until its client has read it. Thread-compatible.
#ifndef BERTH_SERVER_API_UNARY_CALL_H_
#define BERTH_SERVER_API_UNARY_CALL_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "absl/status/status.h"
#include "server/api/rpc.h"
#include "server/delivery/unread_answers.h"

namespace berth {

class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  // `answer` is gRPC's, and lives until OnDone. `unread` must outlive the call. Frees itself in OnDone.
  UnaryCall(UnreadAnswers* unread, const Rpc& rpc, const google::protobuf::Message* answer)
      : unread_(unread), answer_(answer), rpc_(rpc) {}

  // Gives the answer to gRPC, or the error. Call it once; it may free this.
  void Answer(const absl::Status& status) {
    // The message, and what gRPC makes of it.
    const int64_t bytes = 2 * static_cast<int64_t>(answer_->ByteSizeLong());
    unread_->Add(this, bytes, [context = rpc_.context()] { context->TryCancel(); });
    Finish(rpc_.End(status));
  }

  void OnDone() override {
    unread_->Remove(this);
    rpc_.OnDone();
    delete this;
  }

 protected:
  ~UnaryCall() override = default;
  const Rpc& rpc() const { return rpc_; }

 private:
  UnreadAnswers* const unread_;
  const google::protobuf::Message* const answer_;
  Rpc rpc_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_UNARY_CALL_H_
