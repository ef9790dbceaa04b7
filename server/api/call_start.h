// The start of a call that generates, or computes an embedding: takes a place with the tenant, validates, registers and
// submits. A request with a text or a structure waits for the text pool first. Part of its call. Thread-safe.
//
// The request is a message of berth.v1, whatever the call's own message is. What it generates goes to an OutputWriter.
#ifndef BERTH_SERVER_API_CALL_START_H_
#define BERTH_SERVER_API_CALL_START_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "berth/v1/inference.pb.h"
#include "server/api/call_output.h"
#include "server/api/inference_service.h"
#include "server/api/request_output.h"
#include "server/api/text_pool.h"

namespace berth {

class InferenceService::CallStart {
 public:
  // `request` lives as long as the call. `writer` gets End if the request is refused.
  CallStart(InferenceService* service, grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
            bool stream, OutputWriter* writer);
  // For an embedding, which the writer gets before End.
  CallStart(InferenceService* service, grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
            OutputWriter* writer);

  // Call it once. It may end the call at once, and the call may be gone when it returns.
  void Start();
  // For the call's reaction of that name.
  void OnCancel();
  // Null: there is none yet.
  RequestOutput* output() const { return output_.get().get(); }

 private:
  using Message = std::variant<const v1::GenerateRequest*, const v1::EmbedRequest*>;

  CallStart(InferenceService* service, grpc::CallbackServerContext* context, Message request, bool stream,
            OutputWriter* writer);
  // When it has begun, the call may be gone.
  void Begin(const absl::Status& waited, const StopCheck& stop);
  absl::Status WhyStopped(absl::Time now) const;

  InferenceService* const service_;
  grpc::CallbackServerContext* const context_;
  const Message request_;
  const bool stream_;
  OutputWriter* const writer_;
  const RequestKey key_;
  const absl::Time deadline_;
  Ticket ticket_;  // until Begin
  CallOutput output_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_CALL_START_H_
