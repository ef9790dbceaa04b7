#include "client/health.h"

#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <chrono>
#include <future>
#include <memory>

#include "client/connection.h"

namespace berth::cli {
namespace {

// HealthCheckRequest { string service = 1; } and HealthCheckResponse { ServingStatus status = 1; } travel as the
// unknown fields of an empty message.
using Message = google::protobuf::Empty;

std::string StatusName(const Message& response) {
  uint64_t status = 0;
  const auto& fields = response.GetReflection()->GetUnknownFields(response);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == 1 && field.type() == google::protobuf::UnknownField::TYPE_VARINT) status = field.varint();
  }
  switch (status) {
    case 1:
      return "SERVING";
    case 2:
      return "NOT_SERVING";
    default:
      return "UNKNOWN";
  }
}

}  // namespace

std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                        absl::Duration timeout) {
  Message request;
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1, service);
  Message response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  grpc::TemplatedGenericStub<Message, Message> stub(channel);
  const auto done = std::make_shared<std::promise<grpc::Status>>();
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [done](grpc::Status status) { done->set_value(std::move(status)); });
  const grpc::Status status = done->get_future().get();
  return status.ok() ? StatusName(response) : CodeName(status.error_code());
}

}  // namespace berth::cli
