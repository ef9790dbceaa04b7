// berth.v1.Inference on gRPC's callback API, over the Intake. Thread-safe.
//
// Reactions never block and never touch a tensor.
//
// Order of shutdown: Engine::Drain; WaitUntilIdle; Intake::EndAll for what is left; grpc::Server::Shutdown; then the
// services, the intake, the engine and the dispatcher go, in this order.
#ifndef BERTH_SERVER_API_INFERENCE_SERVICE_H_
#define BERTH_SERVER_API_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <utility>

#include "berth/v1/inference.grpc.pb.h"
#include "server/api/rpc.h"
#include "server/request/intake.h"

namespace berth {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  // The intake must outlive the service.
  InferenceService(Intake* intake, RpcOptions rpc) : intake_(intake), rpc_(std::move(rpc)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  class CompleteCall;
  class EmbedCall;
  class TextCall;

  Rpc NewRpc(const char* method, grpc::CallbackServerContext* context) const;

  Intake* const intake_;
  const RpcOptions rpc_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_INFERENCE_SERVICE_H_
