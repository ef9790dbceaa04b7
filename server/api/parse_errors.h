// Gives requests that cannot be parsed a status with words. gRPC ends them with UNIMPLEMENTED and no text, as if the
// method were missing, before a service sees them. Thread-safe.
#ifndef BERTH_SERVER_API_PARSE_ERRORS_H_
#define BERTH_SERVER_API_PARSE_ERRORS_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace berth {

class ParseErrors final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // reflection: whether the server answers reflection. Its methods' descriptors are linked in any case.
  explicit ParseErrors(bool reflection) : reflection_(reflection) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    if (!reflection_ && absl::StartsWith(info->method(), "/grpc.reflection.")) return nullptr;
    // The method is "/berth.v1.Inference/Complete". One that is missing keeps gRPC's answer.
    const std::string name = absl::StrReplaceAll(absl::StripPrefix(info->method(), "/"), {{"/", "."}});
    const bool exists = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name) != nullptr;
    return exists ? new Worder() : nullptr;  // gRPC deletes it with its call
  }

 private:
  class Worder final : public grpc::experimental::Interceptor {
   public:
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      using Point = grpc::experimental::InterceptionHookPoints;
      if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
        const grpc::Status status = methods->GetSendStatus();
        // The API's services implement every method, and their errors have words.
        if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
          methods->ModifySendStatus({grpc::StatusCode::INVALID_ARGUMENT,
                                     "the request cannot be parsed: it is no message of this method, or a text in it "
                                     "is not UTF-8"});
        }
      }
      methods->Proceed();
    }
  };

  const bool reflection_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_PARSE_ERRORS_H_
