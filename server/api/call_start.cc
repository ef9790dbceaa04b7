#include "server/api/call_start.h"

#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace berth {
namespace {

// Whether the message takes work in the text pool.
bool HasText(const v1::GenerateRequest& request) {
  return request.has_prompt() || request.has_chat() || request.has_structure();
}
bool HasText(const v1::EmbedRequest& request) { return request.has_prompt(); }

}  // namespace

InferenceService::CallStart::CallStart(InferenceService* service, grpc::CallbackServerContext* context,
                                       const v1::GenerateRequest* request, bool stream, OutputWriter* writer)
    : CallStart(service, context, Message(request), stream, writer) {}

InferenceService::CallStart::CallStart(InferenceService* service, grpc::CallbackServerContext* context,
                                       const v1::EmbedRequest* request, OutputWriter* writer)
    : CallStart(service, context, Message(request), /*stream=*/false, writer) {}

InferenceService::CallStart::CallStart(InferenceService* service, grpc::CallbackServerContext* context, Message request,
                                       bool stream, OutputWriter* writer)
    : service_(service),
      context_(context),
      request_(request),
      stream_(stream),
      writer_(writer),
      key_(service->options_.registry->NewKey()),
      deadline_(DeadlineOf(*context)) {}

void InferenceService::CallStart::Start() {
  const auto [salt, priority, has_text, bytes] = std::visit(
      [](const auto* request) {
        return std::tuple(request->cache_salt(), request->priority(), HasText(*request),
                          static_cast<int64_t>(request->ByteSizeLong()));
      },
      request_);
  absl::StatusOr<Ticket> ticket = service_->Arrive(context_, "cache_salt", salt, priority);
  if (!ticket.ok()) return writer_->End(nullptr, ticket.status());
  ticket_ = *std::move(ticket);
  if (!has_text) return Begin({}, {});
  absl::Status s = service_->SubmitText(
      context_, key_, salt, bytes, [this](const absl::Status& status, const StopCheck& stop) { Begin(status, stop); });
  if (s.ok()) return;
  if (ticket_ != nullptr) ticket_->Withdraw();
  writer_->End(nullptr, s);
}

void InferenceService::CallStart::OnCancel() {
  output_.Cancel(CauseOfCancel(deadline_, service_->options_.now()));
  service_->options_.texts->Cancel(key_);
}

void InferenceService::CallStart::Begin(const absl::Status& waited, const StopCheck& stop) {
  InferenceService* const service = service_;
  service->AddSubmits(1);
  const absl::Cleanup done = [service] { service->AddSubmits(-1); };
  absl::Status s = waited;
  const Ticket ticket = std::move(ticket_);
  if (s.ok()) {
    absl::StatusOr<ValidatedRequest> valid =
        std::visit([&](const auto* request) { return service->Validate(*request, stream_, stop); }, request_);
    s = service->Begin(context_, std::move(valid), ticket, stream_, writer_, &output_);
  }
  if (s.ok()) return;
  if (ticket != nullptr) ticket->Withdraw();
  if (absl::IsCancelled(s)) s = WhyStopped(service->options_.now());
  if (absl::IsUnavailable(waited)) service->OnRefused(context_, s);
  writer_->End(nullptr, s);
}

absl::Status InferenceService::CallStart::WhyStopped(absl::Time now) const {
  if (now >= deadline_) return absl::DeadlineExceededError("the deadline passed before the request was checked");
  if (output_.cause() != EndCause::kNone) return absl::CancelledError("cancelled by the client");
  return absl::UnavailableError("the server is shutting down");
}

}  // namespace berth
