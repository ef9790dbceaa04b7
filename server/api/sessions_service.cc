#include "server/api/sessions_service.h"

#include "server/api/stream_call.h"
#include "server/request/tenant_rules.h"
#include "server/storage/session_id.h"

namespace berth {

Rpc SessionsService::NewRpc(const char* method, grpc::CallbackServerContext* context) const {
  return {options_.rpc, "berth.v1.Sessions", method, context};
}

absl::Status SessionsService::Check(const std::string& session_id) const {
  return options_.store == nullptr ? SessionsAreOff() : CheckSessionId("session_id", session_id);
}

absl::StatusOr<std::string> SessionsService::Check(const Rpc& rpc, const std::string& session_id,
                                                   const std::string& named_tenant, bool operators) const {
  if (absl::Status s = Check(session_id); !s.ok()) return s;
  return operators ? TenantActedOn(rpc.identity(), "tenant", named_tenant)
                   : TenantOf(rpc.identity(), "tenant", named_tenant);
}

void SessionsService::LogCall(const Rpc& rpc, const std::string& named_tenant, const absl::Status& outcome) const {
  const Identity identity = rpc.identity();
  const bool others = identity.authenticated && !named_tenant.empty() && named_tenant != identity.tenant;
  if (others) rpc.LogOperatorCall(named_tenant, outcome);
}

void SessionsService::Finish(Rpc rpc, grpc::ServerUnaryReactor* reactor, const absl::Status& status) const {
  rpc.Finish(reactor, options_.store->WithoutPath(status));
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
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto ask = [engine = options_.engine](RequestKey key) { engine->Save(key); };
  options_.store->Save(request->session_id(), *tenant, ask, [=, this](absl::StatusOr<v1::Session> session) {
    if (session.ok()) *response->mutable_session() = *std::move(session);
    Finish(rpc, reactor, session.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* SessionsService::Delete(grpc::CallbackServerContext* context,
                                                  const v1::DeleteSessionRequest* request, v1::DeleteSessionResponse*) {
  Rpc rpc = NewRpc("Delete", context);
  const absl::StatusOr<std::string> tenant = Check(rpc, request->session_id(), request->tenant(), /*operators=*/true);
  LogCall(rpc, request->tenant(), tenant.status());
  if (!tenant.ok()) return rpc.Reply(tenant.status());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  options_.store->Delete(request->session_id(), *tenant,
                         [=, this](const absl::Status& status) { Finish(rpc, reactor, status); });
  return reactor;
}

grpc::ServerUnaryReactor* SessionsService::List(grpc::CallbackServerContext* context,
                                                const v1::ListSessionsRequest* request,
                                                v1::ListSessionsResponse* response) {
  Rpc rpc = NewRpc("List", context);
  if (options_.store == nullptr) return rpc.Reply(SessionsAreOff());
  const absl::StatusOr<std::string> tenant = TenantActedOn(rpc.identity(), "tenant", request->tenant());
  LogCall(rpc, request->tenant(), tenant.status());
  if (!tenant.ok()) return rpc.Reply(tenant.status());
  for (v1::Session& session : options_.store->List(*tenant)) *response->add_sessions() = std::move(session);
  return rpc.Reply();
}

}  // namespace berth
