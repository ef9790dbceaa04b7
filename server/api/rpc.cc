#include "server/api/rpc.h"

#include <chrono>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/api/grpc_status.h"
#include "server/request/trace_parent.h"

namespace berth {
namespace {

// On the steady clock. gRPC keeps the deadline on such a clock too, and says it on the wall clock as that is now.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return SteadyNow() + (absl::FromChrono(deadline) - absl::Now());
}

std::string TraceParentOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find(kTraceParent);
  if (found == context.client_metadata().end()) return "";
  const absl::string_view value(found->second.data(), found->second.size());
  return IsTraceParent(value) ? std::string(value) : "";
}

}  // namespace

Identity Rpc::identity() const {
  return options_->identities == nullptr ? Identity() : options_->identities->Of(*context_);
}

CallInfo Rpc::info() const {
  return {.deadline = DeadlineOf(*context_),
          .peer = context_->peer(),
          .trace_parent = TraceParentOf(*context_),
          .identity = identity()};
}

void Rpc::LogOperatorCall(const std::string& tenant, const absl::Status& outcome) const {
  if (options_->audit == nullptr) return;
  const std::string peer = context_->peer();
  const Identity caller = identity();
  options_->audit->OnOperatorCall({.peer = peer, .method = method_, .credential = caller.credential, .tenant = tenant},
                                  outcome);
}

grpc::Status Rpc::End(const absl::Status& status) {
  AddRetryAdvice(status, context_);
  grpc::Status ended = ToGrpcStatus(status);
  code_ = ended.error_code();
  return ended;
}

grpc::Status Rpc::EndAs(grpc::StatusCode code, const absl::Status& status) {
  const grpc::Status ended = End(status);
  code_ = code;
  return grpc::Status(code, ended.error_message());
}

void Rpc::OnDone() const { options_->metrics->OnRpc(service_, method_, code_, options_->now() - received_); }

void Rpc::Finish(grpc::ServerUnaryReactor* reactor, const absl::Status& status) {
  const grpc::Status ended = End(status);
  OnDone();
  reactor->Finish(ended);
}

grpc::ServerUnaryReactor* Rpc::Reply(const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context_->DefaultReactor();
  Finish(reactor, status);
  return reactor;
}

}  // namespace berth
