#include "server/api/sessions_service.h"

#include <memory>
#include <string>

#include "absl/strings/str_replace.h"
#include "server/api/call_output.h"
#include "server/api/caller.h"
#include "server/api/field_checks.h"
#include "server/api/grpc_status.h"
#include "server/api/response_stream.h"
#include "server/api/session_request.h"
#include "server/storage/session_id.h"

namespace berth {
namespace {

constexpr char kService[] = "berth.v1.Sessions";

}  // namespace

// One Resume RPC. The session is read on the store's thread, which then starts the request; a call that is cancelled
// before that ends there. Frees itself in OnDone, which gRPC calls once, after Finish and with no operation left.
class SessionsService::ResumeCall final : public ResponseStream {
 public:
  ResumeCall(SessionsService* service, grpc::CallbackServerContext* context, const v1::ResumeSessionRequest& request)
      : service_(service), context_(context), request_(request), start_(service->options_.now()) {
    const absl::StatusOr<std::string> tenant =
        service->Check(*context, request.session_id(), request.tenant(), /*operators=*/false);
    if (!tenant.ok()) {
      Refuse(tenant.status());
      return;
    }
    absl::StatusOr<InferenceService::Ticket> ticket =
        service->options_.inference->Arrive(context, "tenant", request.tenant(), /*priority=*/0);
    if (!ticket.ok()) {
      End(nullptr, ticket.status());
      return;
    }
    ticket_ = *std::move(ticket);
    service->options_.store->Load(request.session_id(), *tenant, [this](absl::StatusOr<SessionFileContent> loaded) {
      Begin(loaded.ok() ? Read(*std::move(loaded)) : loaded.status());
    });
  }

  void OnWriteDone(bool ok) override { output_.get()->OnWritten(ok); }
  void OnCancel() override { output_.Cancel(CauseOfCancel(DeadlineOf(*context_), service_->options_.now())); }
  void OnDone() override {
    if (Metrics* metrics = service_->options_.metrics; metrics != nullptr) {
      metrics->OnRpc(kService, "Resume", ToGrpcStatus(status()).error_code(), service_->options_.now() - start_);
    }
    delete this;
  }

 private:
  absl::StatusOr<ValidatedRequest> Read(SessionFileContent content) const {
    return ResumeSession(std::move(content), service_->options_.inference->validation());
  }

  // Ends the call before InferenceService knows of its request.
  void Refuse(const absl::Status& status) {
    if (ticket_ != nullptr) ticket_->Withdraw();
    service_->options_.inference->CountRefusal(status);
    End(nullptr, status);
  }

  // On the store's thread.
  void Begin(absl::StatusOr<ValidatedRequest> loaded) {
    if (!loaded.ok()) return Refuse(service_->WithoutPath(loaded.status()));
    loaded->request_id = request_.request_id();
    loaded->output.skip_tokens = request_.received_tokens();
    if (request_.has_request_id()) {
      if (absl::Status s = CheckRequestId("request_id", loaded->request_id); !s.ok()) return Refuse(s);
    }
    if (loaded->output.skip_tokens > loaded->request.max_tokens) {
      return Refuse(absl::InvalidArgumentError(absl::StrCat("received_tokens: ", loaded->output.skip_tokens,
                                                            " is over the request's max_tokens of ",
                                                            loaded->request.max_tokens)));
    }
    if (output_.cause() != EndCause::kNone) return Refuse(absl::CancelledError("cancelled by the client"));
    InferenceService& inference = *service_->options_.inference;
    absl::StatusOr<InferenceService::RegisteredRequest> registered =
        inference.Register(context_, *std::move(loaded), std::move(ticket_), /*stream=*/true, this);
    if (!registered.ok()) return End(nullptr, registered.status());
    output_.Set(registered->output);
    // This call may be gone when Submit returns OK.
    if (absl::Status s = inference.Submit(context_, *std::move(registered)); !s.ok()) {
      output_.Clear();
      End(nullptr, s);
    }
  }

  SessionsService* const service_;
  grpc::CallbackServerContext* const context_;
  const v1::ResumeSessionRequest request_;
  const absl::Time start_;
  InferenceService::Ticket ticket_;  // until Register
  CallOutput output_;
};

absl::Status SessionsService::WithoutPath(const absl::Status& status) const {
  if (status.ok() || options_.store == nullptr) return status;
  const std::string prefix = options_.store->folder() + "/";
  return {status.code(), absl::StrReplaceAll(status.message(), {{prefix, ""}})};
}

absl::Status SessionsService::Check(const std::string& session_id) const {
  return options_.store == nullptr ? SessionsAreOff() : CheckSessionId("session_id", session_id);
}

absl::StatusOr<std::string> SessionsService::Check(const grpc::CallbackServerContext& context,
                                                   const std::string& session_id, const std::string& named_tenant,
                                                   bool operators) const {
  if (absl::Status s = Check(session_id); !s.ok()) return s;
  const Identity identity = IdentityOf(options_.inference->identities(), context);
  return operators ? TenantActedOn(identity, "tenant", named_tenant) : TenantOf(identity, "tenant", named_tenant);
}

void SessionsService::LogCall(const grpc::CallbackServerContext& context, const char* method,
                              const std::string& named_tenant, const absl::Status& outcome) const {
  const Identity identity = IdentityOf(options_.inference->identities(), context);
  const bool others = identity.authenticated && !named_tenant.empty() && named_tenant != identity.tenant;
  if (!others || options_.audit == nullptr) return;
  options_.audit->OnOperatorCall(
      {.peer = context.peer(), .method = method, .credential = identity.credential, .tenant = named_tenant}, outcome);
}

void SessionsService::Finish(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                             const char* method, absl::Time start, const absl::Status& result) {
  const absl::Status status = WithoutPath(result);
  AddRetryAdvice(status, context);
  if (options_.metrics != nullptr) {
    options_.metrics->OnRpc(kService, method, ToGrpcStatus(status).error_code(), options_.now() - start);
  }
  reactor->Finish(ToGrpcStatus(status));
}

grpc::ServerWriteReactor<v1::GenerateResponse>* SessionsService::Resume(grpc::CallbackServerContext* context,
                                                                        const v1::ResumeSessionRequest* request) {
  return new ResumeCall(this, context, *request);
}

grpc::ServerUnaryReactor* SessionsService::Save(grpc::CallbackServerContext* context,
                                                const v1::SaveSessionRequest* request,
                                                v1::SaveSessionResponse* response) {
  const absl::Time start = options_.now();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<std::string> tenant =
      Check(*context, request->session_id(), request->tenant(), /*operators=*/false);
  if (!tenant.ok()) {
    Finish(context, reactor, "Save", start, tenant.status());
    return reactor;
  }
  const auto ask = [engine = options_.engine](RequestKey key) { engine->Save(key); };
  options_.store->Save(request->session_id(), *tenant, ask,
                       [this, context, reactor, response, start](absl::StatusOr<v1::Session> session) {
                         if (session.ok()) *response->mutable_session() = *std::move(session);
                         Finish(context, reactor, "Save", start, session.status());
                       });
  return reactor;
}

grpc::ServerUnaryReactor* SessionsService::Delete(grpc::CallbackServerContext* context,
                                                  const v1::DeleteSessionRequest* request, v1::DeleteSessionResponse*) {
  const absl::Time start = options_.now();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<std::string> tenant =
      Check(*context, request->session_id(), request->tenant(), /*operators=*/true);
  LogCall(*context, "Delete", request->tenant(), tenant.status());
  if (!tenant.ok()) {
    Finish(context, reactor, "Delete", start, tenant.status());
    return reactor;
  }
  options_.store->Delete(request->session_id(), *tenant, [this, context, reactor, start](const absl::Status& status) {
    Finish(context, reactor, "Delete", start, status);
  });
  return reactor;
}

grpc::ServerUnaryReactor* SessionsService::List(grpc::CallbackServerContext* context,
                                                const v1::ListSessionsRequest* request,
                                                v1::ListSessionsResponse* response) {
  const absl::Time start = options_.now();
  absl::StatusOr<std::string> tenant = SessionsAreOff();
  if (options_.store != nullptr) {
    tenant = TenantActedOn(IdentityOf(options_.inference->identities(), *context), "tenant", request->tenant());
    LogCall(*context, "List", request->tenant(), tenant.status());
  }
  if (tenant.ok()) {
    for (v1::Session& session : options_.store->List(*tenant)) *response->add_sessions() = std::move(session);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Finish(context, reactor, "List", start, tenant.status());
  return reactor;
}

}  // namespace berth
