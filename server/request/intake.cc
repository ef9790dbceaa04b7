#include "server/request/intake.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "server/delivery/output_assembler.h"
#include "server/process/client_address.h"
#include "server/process/escape.h"
#include "server/request/refusal_reason.h"
#include "server/request/session_request.h"
#include "server/request/structure.h"
#include "server/request/tenant_rules.h"
#include "server/storage/session_id.h"

namespace berth {
namespace {

// Whose turn it is. `named`: the tenant that the message names.
Caller CallerOf(const CallInfo& call, const std::string& named) {
  if (call.identity.authenticated) return {.client = call.identity.tenant, .tenant = ""};
  return {.client = ClientAddress(call.peer), .tenant = named};
}

// Ties the request's id to the trace that the client belongs to.
void LogBegin(const CallInfo& call, const RequestOutput& output, int64_t prompt_tokens) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  spdlog::debug("request began: id={} key={} prompt_tokens={} traceparent={}", Quoted(output.request_id()),
                output.key(), prompt_tokens, call.trace_parent.empty() ? "none" : call.trace_parent);
}

}  // namespace

Intake::Intake(Options options)
    : options_(std::move(options)),
      validation_{&options_.model, options_.text, options_.limits, options_.defaults, options_.finds_message_ends} {
  validation_.on_tokenised = [metrics = options_.metrics](absl::Duration time) { metrics->OnTokenised(time); };
  validation_.on_rendered = [metrics = options_.metrics](absl::Duration time) { metrics->OnRendered(time); };
}

Intake::~Intake() { in_flight_.WaitUntilNone(); }

std::shared_ptr<Intake::Handle> Intake::Start(const Message& message, CallInfo call, bool stream,
                                              OutputWriter* writer) {
  const std::shared_ptr<Handle> handle(new Handle(this, message, std::move(call), stream, writer));
  handle->Start();
  return handle;
}

absl::Status Intake::SubmitTo(TurnPool* pool, RequestKey key, const CallInfo& call, const std::string& named_tenant,
                              int64_t bytes, TurnPool::Work work) {
  Caller caller = CallerOf(call, named_tenant);
  TurnPool::Job job;
  job.key = key;
  job.client = std::move(caller.client);
  job.tenant = std::move(caller.tenant);
  job.bytes = bytes;
  job.deadline = call.deadline;
  job.work = std::move(work);
  return pool->Submit(std::move(job));
}

void Intake::CountRefusal(const absl::Status& status) {
  if (const std::optional<RefusalReason> reason = ReasonOf(status)) options_.metrics->OnRejected(*reason);
}

void Intake::EndAll() {
  registry()->CancelAll(EndCause::kShutdown);
  options_.texts->Stop();
  options_.loads->Stop();
  registry()->CancelAll(EndCause::kShutdown);  // those that were being checked
}

absl::Status Intake::Begin(const CallInfo& call, Checked checked, bool stream, OutputWriter* writer,
                           const std::function<void(std::shared_ptr<RequestOutput>)>& set_output) {
  const auto make_output = [&](ValidatedRequest* valid, const std::string& id_space, const Ticket& ticket) {
    return MakeOutput(valid, id_space, ticket, stream, writer);
  };
  absl::StatusOr<Registered> registered = Register(options_.desk, call, std::move(checked), make_output);
  if (!registered.ok()) return registered.status();
  LogBegin(call, *registered->output, NumPromptTokens(registered->request));
  set_output(registered->output);
  Compile(*std::move(registered), call);
  return absl::OkStatus();
}

void Intake::Compile(Registered registered, const CallInfo& call) {
  if (!registered.structure.has_value()) return Submit({std::move(registered)});
  const RequestKey key = registered.request.key;
  const GrammarSpec spec = *registered.structure;
  const Caller caller = CallerOf(call, registered.request.cache_salt);
  const std::shared_ptr<RequestOutput> output = registered.output;
  {
    MutexLock lock(&mutex_);
    compiling_.emplace(key, std::move(registered));
  }
  options_.grammars->Compile(
      key, spec, [this, key](absl::StatusOr<CompiledGrammar> grammar) { OnCompiled(key, std::move(grammar)); }, caller);
  bool is_wanted;
  {
    MutexLock lock(&mutex_);
    is_wanted = compiling_.count(key) != 0;
  }
  if (!is_wanted) options_.grammars->Cancel(key);  // it may have been cancelled before the compiler knew it
  output->OnSubmitted();                           // repeats a cancellation that came before
}

std::optional<Registered> Intake::TakeCompiling(RequestKey key) {
  MutexLock lock(&mutex_);
  const auto found = compiling_.find(key);
  if (found == compiling_.end()) return std::nullopt;
  std::optional<Registered> registered(std::move(found->second));
  compiling_.erase(found);
  return registered;
}

void Intake::OnCompiled(RequestKey key, absl::StatusOr<CompiledGrammar> grammar) {
  const Undo within = in_flight_.Enter();
  std::optional<Registered> registered = TakeCompiling(key);
  if (!registered.has_value()) return;  // it was cancelled meanwhile
  if (!grammar.ok()) {
    const absl::Status status = NameStructure(*registered->structure, grammar.status());
    return Refuse(*std::move(registered), status);
  }
  registered->request.constraint = std::move(grammar->start);
  registered->output->Warn(std::move(grammar->warnings));
  Submit({*std::move(registered)});
}

void Intake::Submit(Compiled compiled) {
  Registered registered = std::move(compiled.registered);
  const int64_t prompt_tokens = NumPromptTokens(registered.request);
  if (absl::Status s = options_.desk.engine->Submit(std::move(registered.request)); !s.ok()) {
    return Refuse(std::move(registered), s);
  }
  registered.Keep();
  registered.output->OnSubmitted();
  const RequestKey key = registered.output->key();
  if (options_.desk.sessions->IsAwaited(key)) options_.desk.engine->Save(key);
  options_.metrics->OnQueued(prompt_tokens);
}

void Intake::Refuse(Registered registered, const absl::Status& status) {
  const std::shared_ptr<RequestOutput> output = registered.output;
  { const Registered undone = std::move(registered); }
  CountRefusal(status);
  output->Refuse(status);
}

void Intake::Cancel(RequestKey key, FinishReason reason) {
  std::optional<Registered> registered = TakeCompiling(key);
  if (!registered.has_value()) return options_.desk.engine->Cancel(key, reason);
  options_.grammars->Cancel(key);
  // The engine does not know the request, so its end comes from here, and so does the word that no save follows. It
  // counts as finished, so also as accepted.
  registered->session = Undo();
  registered->Keep();
  options_.desk.dispatcher->DeliverSave({.key = key, .last = true});
  options_.metrics->OnQueued(NumPromptTokens(registered->request));
  TokenEvent end;
  end.key = key;
  end.finish = reason;
  std::vector<TokenEvent> events = {std::move(end)};
  options_.desk.dispatcher->Deliver(&events);
}

class Intake::Owner final : public OutputOwner {
 public:
  Owner(Intake* intake, const std::string& id_space, Ticket ticket)
      : intake_(intake), id_space_(id_space), ticket_(std::move(ticket)) {}

  void Cancel(RequestKey key, FinishReason reason) override { intake_->Cancel(key, reason); }
  void CancelOutput(RequestKey key, int32_t output, FinishReason reason) override {
    engine()->CancelOutput(key, output, reason);
  }
  void SetPaused(RequestKey key, bool paused) override { engine()->SetPaused(key, paused); }
  void OnFirstToken(const RequestTimes& times) override {
    ticket_->OnFirstToken();
    intake_->options_.metrics->OnFirstToken(times);
  }
  void OnInterToken(absl::Duration gap) override { intake_->options_.metrics->OnInterToken(gap); }
  void OnEnded(const EndedRequest& request) override {
    ticket_->OnEnded(request.num_tokens);
    intake_->OnEnded(id_space_, request);
  }

 private:
  Engine* engine() const { return intake_->options_.desk.engine; }

  Intake* const intake_;
  const std::string id_space_;
  const Ticket ticket_;
};

std::shared_ptr<RequestOutput> Intake::MakeOutput(ValidatedRequest* valid, const std::string& id_space,
                                                  const Ticket& ticket, bool stream, OutputWriter* writer) {
  const Request& request = valid->request;
  RequestOutput::Options out;
  out.key = request.key;
  out.request_id = valid->request_id.empty() ? absl::StrFormat("req-%016x%08x", RandomSeed(), request.key)
                                             : std::move(valid->request_id);
  out.id_space = id_space;
  out.tenant = request.cache_salt;
  out.arrival = request.arrival;
  out.num_prompt_tokens = NumPromptTokens(request);
  if (valid->output.return_prompt_token_ids) {
    out.prompt_token_ids = request.encoder_tokens.empty() ? request.prompt : request.encoder_tokens;
  }
  out.output = std::move(valid->output);
  out.stream = stream;
  out.undelivered = registry()->undelivered();
  out.owner = std::make_shared<Owner>(this, id_space, ticket);
  return std::make_shared<RequestOutput>(std::move(out), validation_.text, writer);
}

void Intake::OnEnded(const std::string& id_space, const EndedRequest& request) {
  registry()->Remove(id_space, std::string(request.request_id));
  options_.desk.sessions->OnEnded(request.key);
  options_.metrics->OnFinished(request.reason, request.times, request.num_prompt_tokens,
                               request.num_tokens - request.num_replayed, request.num_outputs);
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const v1::Timings timings = MakeTimings(request.times);
  spdlog::debug(
      "request ended: id={} key={} reason={} code={} prompt_tokens={} tokens={} queue_s={:.6f} prefill_s={:.6f} "
      "decode_s={:.6f} preemptions={}",
      Quoted({request.request_id.data(), request.request_id.size()}), request.key,
      std::string(FinishReasonName(request.reason)), absl::StatusCodeToString(request.status.code()),
      request.num_prompt_tokens, request.num_tokens, timings.queue_seconds(), timings.prefill_seconds(),
      timings.decode_seconds(), timings.preemptions());
}

Intake::Handle::Handle(Intake* intake, const Message& message, CallInfo call, bool stream, OutputWriter* writer)
    : calls_(intake->calls_),
      counted_(calls_->Enter()),
      intake_(intake),
      message_(message),
      call_(std::move(call)),
      stream_(stream),
      writer_(writer),
      work_key_(intake->registry()->NewKey()) {}

void Intake::Handle::Start() {
  const auto* const* const resumed = std::get_if<const v1::ResumeSessionRequest*>(&message_);
  if (resumed != nullptr) {
    if (absl::Status s = CheckSessionId("session_id", (*resumed)->session_id()); !s.ok()) return Refuse(s);
  }
  const Asker asker = AskerOf(message_);
  absl::StatusOr<Admitted> admitted = Admit(intake_->options_.desk, call_, asker);
  if (!admitted.ok()) return Refuse(admitted.status());
  admitted_ = *std::move(admitted);
  if (resumed != nullptr) return Load(asker.tenant);

  const auto check = [self = shared_from_this()](const absl::Status& waited, const StopCheck& stop) {
    const Undo within = self->intake_->in_flight_.Enter();
    if (!waited.ok()) return self->Refuse(waited);
    absl::StatusOr<ValidatedRequest> valid = Validate(self->message_, self->stream_, self->intake_->validation_, stop);
    FreeMessage(self->message_);
    self->Begin(std::move(valid));
  };
  const std::optional<int64_t> bytes = TextBytes(message_);
  if (!bytes.has_value()) return check(absl::OkStatus(), {});
  if (absl::Status s = intake_->SubmitText(work_key_, call_, asker.tenant, *bytes, check); !s.ok()) Refuse(s);
}

void Intake::Handle::Load(const std::string& tenant) {
  // Holds the thread until the session is read: the store's queue, which also has saves, gets one load at a time.
  const auto load = [self = shared_from_this()](const absl::Status& waited, const StopCheck& stop) {
    const Undo within = self->intake_->in_flight_.Enter();
    if (!waited.ok()) return self->Refuse(waited);
    const v1::ResumeSessionRequest& request = *std::get<const v1::ResumeSessionRequest*>(self->message_);
    absl::Notification loaded;
    self->intake_->options_.desk.sessions->Load(
        request.session_id(), *TenantOf(self->call_.identity, "tenant", request.tenant()),
        [&](absl::StatusOr<SessionFileContent> content) {
          self->OnLoaded(stop() ? absl::CancelledError("") : std::move(content));
          loaded.Notify();
        });
    loaded.WaitForNotification();
  };
  if (absl::Status s = intake_->SubmitTo(intake_->options_.loads, work_key_, call_, tenant, 0, load); !s.ok()) {
    Refuse(s);
  }
}

void Intake::Handle::OnLoaded(absl::StatusOr<SessionFileContent> loaded) {
  if (!loaded.ok()) return Refuse(loaded.status());
  const v1::ResumeSessionRequest& resumed = *std::get<const v1::ResumeSessionRequest*>(message_);
  absl::StatusOr<ValidatedRequest> valid = ResumeSession(*std::move(loaded), resumed, intake_->validation_);
  FreeMessage(message_);
  Begin(std::move(valid));
}

void Intake::Handle::Begin(absl::StatusOr<ValidatedRequest> valid) {
  if (valid.ok() && cause() != EndCause::kNone) valid = absl::CancelledError("");
  if (!valid.ok()) return Refuse(valid.status());
  Checked checked = {*std::move(admitted_), *std::move(valid)};
  admitted_.reset();
  const auto set_output = [this](std::shared_ptr<RequestOutput> output) { SetOutput(std::move(output)); };
  // With OK, the call may be gone by now.
  if (absl::Status s = intake_->Begin(call_, std::move(checked), stream_, writer_, set_output); !s.ok()) Refuse(s);
}

void Intake::Handle::Refuse(absl::Status status) {
  if (absl::IsCancelled(status)) status = WhyStopped();
  admitted_.reset();
  intake_->CountRefusal(status);
  writer_->End(nullptr, status);
}

absl::Status Intake::Handle::WhyStopped() const {
  if (intake_->now() >= call_.deadline) {
    return absl::DeadlineExceededError("the deadline passed before the request was checked");
  }
  if (cause() != EndCause::kNone) return absl::CancelledError("cancelled by the client");
  return absl::UnavailableError("the server is shutting down");
}

void Intake::Handle::OnWritten(bool ok) {
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&mutex_);
    output = output_;
  }
  output->OnWritten(ok);
}

void Intake::Handle::Cancel() {
  // A protocol may report a call past its deadline as cancelled.
  const EndCause cause = intake_->now() >= call_.deadline ? EndCause::kDeadline : EndCause::kClientGone;
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&mutex_);
    if (cause_ == EndCause::kNone) cause_ = cause;
    output = output_;
  }
  if (output != nullptr) output->Cancel(cause);
  intake_->texts()->Cancel(work_key_);
  intake_->options_.loads->Cancel(work_key_);
}

void Intake::Handle::SetOutput(std::shared_ptr<RequestOutput> output) {
  EndCause cause;
  {
    MutexLock lock(&mutex_);
    output_ = output;
    cause = cause_;
  }
  if (cause != EndCause::kNone) output->Cancel(cause);
}

EndCause Intake::Handle::cause() const {
  MutexLock lock(&mutex_);
  return cause_;
}

}  // namespace berth
