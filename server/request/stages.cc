#include "server/request/stages.h"

#include <utility>

#include "server/request/session_request.h"
#include "server/request/tenant_rules.h"

namespace berth {
namespace {

absl::Status Pay(const Desk& desk, const Request& request, Admission::Ticket* ticket) {
  const int64_t replayed = request.progress == nullptr ? 0 : static_cast<int64_t>(request.progress->tokens.size());
  return ticket->Pay({.sequences = request.num_sequences(),
                      .prompt_tokens = NumPromptTokens(request),
                      .output_tokens = request.max_tokens * request.num_sequences() - replayed,
                      .replayed_tokens = replayed,
                      .cache_bytes = desk.cache_bytes(request)});
}

}  // namespace

int64_t NumPromptTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
}

absl::StatusOr<Admitted> Admit(const Desk& desk, const CallInfo& call, const Asker& asker) {
  const absl::StatusOr<std::string> tenant = TenantOf(call.identity, asker.field, asker.tenant);
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<Ticket> ticket = desk.admission->Arrive(*tenant);
  if (!ticket.ok()) return ticket.status();
  Admitted admitted = {*ticket, Undo([ticket = *ticket] { ticket->Withdraw(); })};
  if (absl::Status s = desk.engine->CheckArrival(call.deadline, *tenant, asker.priority); !s.ok()) return s;
  return admitted;
}

absl::StatusOr<Registered> Register(const Desk& desk, const CallInfo& call, Checked checked,
                                    const MakeOutput& make_output) {
  ValidatedRequest& valid = checked.valid;
  valid.request.key = desk.registry->NewKey();
  valid.request.arrival = desk.now();
  valid.request.deadline = call.deadline;
  if (call.identity.authenticated) {
    valid.request.cache_salt = call.identity.tenant;
    if (valid.session_request.has_value()) valid.session_request->set_cache_salt(call.identity.tenant);
  }
  if (absl::Status s = Pay(desk, valid.request, checked.admitted.ticket.get()); !s.ok()) return s;

  Registered out;
  out.place = std::move(checked.admitted.place);
  const RequestKey key = valid.request.key;
  if (valid.request.saved) {
    if (absl::Status s = desk.sessions->Begin(key, MakeSessionFile(valid)); !s.ok()) return s;
    out.session = Undo([sessions = desk.sessions, key] { sessions->Withdraw(key); });
  }
  out.output = make_output(&valid, IdSpaceOf(call.identity), checked.admitted.ticket);
  if (absl::Status s = desk.registry->Add(out.output); !s.ok()) return s;
  out.id = Undo(
      [registry = desk.registry, output = out.output] { registry->Remove(output->id_space(), output->request_id()); });
  desk.dispatcher->Register(out.output);
  out.delivery = Undo([dispatcher = desk.dispatcher, key] { dispatcher->Unregister(key); });
  out.request = std::move(valid.request);
  out.structure = std::move(valid.structure);
  return out;
}

}  // namespace berth
