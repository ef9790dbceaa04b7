#include "server/api/sessions_service.h"

#include "server/api/stream_call.h"
#include "server/api/unary_call.h"
#include "server/request/message.h"
#include "server/request/tenant_rules.h"
#include "server/storage/session_id.h"

namespace berth {

Rpc SessionsService::NewRpc(const char* method, grpc::CallbackServerContext* context) const {
  return {options_.rpc, "berth.v1.Sessions", method, context};
}

absl::StatusOr<std::string> SessionsService::Check(const Rpc& rpc, const std::string& session_id,
                                                   const std::string& named_tenant, bool operators) const {
  if (absl::Status s = CheckSessionId("session_id", session_id); !s.ok()) return s;
  return operators ? TenantActedOn(rpc.identity(), "tenant", named_tenant)
                   : TenantOf(rpc.identity(), "tenant", named_tenant);
}

void SessionsService::LogCall(const Rpc& rpc, const std::string& named_tenant, const absl::Status& outcome) const {
  const Identity identity = rpc.identity();
  const bool others = identity.authenticated && !named_tenant.empty() && named_tenant != identity.tenant;
  if (others) rpc.LogOperatorCall(named_tenant, outcome);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* SessionsService::Resume(grpc::CallbackServerContext* context,
                                                                        const v1::ResumeSessionRequest* request) {
  return new StreamCall(options_.intake, request, NewRpc("Resume", context));
}

grpc::ServerUnaryReactor* SessionsService::Save(grpc::CallbackServerContext* context,
                                                const v1::SaveSessionRequest* request,
                                                v1::SaveSessionResponse* response) {
  Rpc rpc = NewRpc("Save", context);
  const absl::StatusOr<std::string> tenant = Check(rpc, request->session_id(), request->tenant(), /*operators=*/false);
  if (!tenant.ok()) return rpc.Reply(tenant.status());
  const std::string session_id = request->session_id();
  FreeMessage(request);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto ask = [engine = options_.engine](RequestKey key) { engine->Save(key); };
  options_.sessions->Save(session_id, *tenant, ask, [=](absl::StatusOr<v1::Session> session) mutable {
    if (session.ok()) *response->mutable_session() = *std::move(session);
    rpc.Finish(reactor, session.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* SessionsService::Delete(grpc::CallbackServerContext* context,
                                                  const v1::DeleteSessionRequest* request, v1::DeleteSessionResponse*) {
  Rpc rpc = NewRpc("Delete", context);
  const absl::StatusOr<std::string> tenant = Check(rpc, request->session_id(), request->tenant(), /*operators=*/true);
  if (!tenant.ok()) {
    LogCall(rpc, request->tenant(), tenant.status());
    return rpc.Reply(tenant.status());
  }
  const std::string session_id = request->session_id(), named_tenant = request->tenant();
  FreeMessage(request);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  options_.sessions->Delete(session_id, *tenant, [=, this](const absl::Status& status) mutable {
    LogCall(rpc, named_tenant, status);
    rpc.Finish(reactor, status);
  });
  return reactor;
}

grpc::ServerUnaryReactor* SessionsService::List(grpc::CallbackServerContext* context,
                                                const v1::ListSessionsRequest* request,
                                                v1::ListSessionsResponse* response) {
  Rpc rpc = NewRpc("List", context);
  const absl::StatusOr<std::string> tenant = TenantActedOn(rpc.identity(), "tenant", request->tenant());
  absl::StatusOr<std::vector<v1::Session>> sessions = tenant.ok() ? options_.sessions->List(*tenant) : tenant.status();
  LogCall(rpc, request->tenant(), sessions.status());
  if (!tenant.ok()) return rpc.Reply(tenant.status());
  if (sessions.ok()) {
    for (v1::Session& session : *sessions) *response->add_sessions() = std::move(session);
  }
  auto* const call = new UnaryCall(options_.intake->registry()->unread(), rpc, response);
  call->Answer(sessions.status());
  return call;
}

}  // namespace berth
