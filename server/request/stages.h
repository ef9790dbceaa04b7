// A request's way to the engine, in stages. Each is a value that can only be moved: it holds what the request has taken
// so far, and gives all of it back when it is destroyed. So a request that is refused, cancelled or dropped anywhere
// leaves nothing behind.
//
//   Admit      -> Admitted     its place with the tenant
//   (checks)   -> Checked      what it asks for, found valid
//   Register   -> Registered   what it pays, its session, its id, and its output's place in the delivery
//   (compiler) -> Compiled     its grammar, if it has a structure
//   Submit                     the engine has it; OutputOwner::OnEnded gives everything back
//
// To have a request hold something more, take it in Admit or Register, with an Undo in that stage, and give it back in
// Intake::OnEnded.
#ifndef BERTH_SERVER_REQUEST_STAGES_H_
#define BERTH_SERVER_REQUEST_STAGES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "server/admission/admission.h"
#include "server/delivery/output_dispatcher.h"
#include "server/delivery/request_output.h"
#include "server/delivery/request_registry.h"
#include "server/request/call_info.h"
#include "server/request/undo.h"
#include "server/request/validated_request.h"
#include "server/storage/sessions.h"
#include "text/grammar_spec.h"

namespace berth {

// What requests take their places from. All pointers are set, and must outlive the stages.
struct Desk {
  Engine* engine = nullptr;
  Admission* admission = nullptr;
  OutputDispatcher* dispatcher = nullptr;  // the engine's sink
  RequestRegistry* registry = nullptr;
  Sessions* sessions = nullptr;  // without --session_dir: NoSessions
  // The most cache that a request may come to hold.
  std::function<int64_t(const Request&)> cache_bytes = [](const Request&) { return 0; };
  std::function<absl::Time()> now = SteadyNow;
};

using Ticket = std::shared_ptr<Admission::Ticket>;

struct Admitted {
  Ticket ticket;
  Undo place;  // the ticket's
};

struct Checked {
  Admitted admitted;
  ValidatedRequest valid;
};

struct Registered {
  Request request;
  std::optional<GrammarSpec> structure;
  std::shared_ptr<RequestOutput> output;
  // Undone from the last to the first.
  Undo place;
  Undo session;
  Undo id;
  Undo delivery;

  // The engine has the request, and its last event gives everything back.
  void Keep() {
    for (Undo* undo : {&place, &session, &id, &delivery}) undo->Dismiss();
  }
};

// Ready for the engine.
struct Compiled {
  Registered registered;
};

// Who asks, in the words of the message.
struct Asker {
  absl::string_view field;  // that names the tenant
  std::string tenant;       // as named there, or ""
  int64_t priority = 0;
};

// Tokens that the request sends for the model to compute: of the prompt, and of the encoder's input.
int64_t NumPromptTokens(const Request& request);

// Before anything is done for a request. RESOURCE_EXHAUSTED: its tenant is at a limit, or the deadline cannot be met.
// INVALID_ARGUMENT: the caller must not name that tenant, see TenantOf. UNAVAILABLE: the server drains.
absl::StatusOr<Admitted> Admit(const Desk& desk, const CallInfo& call, const Asker& asker);

// Makes the output of a request that is about to be registered. `id_space`: IdSpaceOf the caller.
using MakeOutput =
    std::function<std::shared_ptr<RequestOutput>(ValidatedRequest* valid, const std::string& id_space, const Ticket&)>;

// Gives the request a key, its caller's tenant, and what the stage is to hold. RESOURCE_EXHAUSTED: the tenant cannot
// pay for it; ALREADY_EXISTS: its id runs; FAILED_PRECONDITION: its session runs.
absl::StatusOr<Registered> Register(const Desk& desk, const CallInfo& call, Checked checked,
                                    const MakeOutput& make_output);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_STAGES_H_
