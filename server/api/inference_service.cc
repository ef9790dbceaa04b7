#include "server/api/inference_service.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "scheduler/steady_clock.h"
#include "server/api/call_start.h"
#include "server/api/caller.h"
#include "server/api/field_checks.h"
#include "server/api/grpc_status.h"
#include "server/api/response_stream.h"
#include "server/api/session_request.h"
#include "server/api/structure.h"
#include "server/api/trace_parent.h"
#include "server/escape.h"

namespace berth {
namespace {

constexpr char kService[] = "berth.v1.Inference";

uint64_t RandomSeed() {
  std::random_device device;  // of the kernel; not a stream that an earlier seed would give away
  return uint64_t{device()} << 32 | device();
}

// "ipv4:10.0.0.1:1234" without its port.
std::string AddressOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

// `named`: the tenant that the request names.
Caller CallerOf(const Identity& identity, const std::string& peer, const std::string& named) {
  if (identity.authenticated) return {.client = identity.tenant, .tenant = ""};
  return {.client = AddressOf(peer), .tenant = named};
}

// Ties the request's id to the trace that the client belongs to.
void LogBegin(const grpc::CallbackServerContext& context, const RequestOutput& output, int64_t prompt_tokens) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const auto found = context.client_metadata().find(kTraceParent);
  const bool traced = found != context.client_metadata().end() &&
                      IsTraceParent(absl::string_view(found->second.data(), found->second.size()));
  spdlog::debug("request began: id={} key={} prompt_tokens={} traceparent={}", Quoted(output.request_id()),
                output.key(), prompt_tokens, traced ? std::string(found->second.data(), found->second.size()) : "none");
}

}  // namespace

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return SteadyNow() + (absl::FromChrono(deadline) - absl::Now());
}

// One Generate RPC: gRPC's reactions on the one side, the output's writer on the other. Frees itself in OnDone, which
// gRPC calls once, after End has been called and no operation is left.
class InferenceService::GenerateCall final : public ResponseStream {
 public:
  GenerateCall(InferenceService* service, grpc::CallbackServerContext* context, const v1::GenerateRequest* request)
      : service_(service),
        received_(service->options_.now()),
        start_(service, context, request, /*stream=*/true, this) {
    start_.Start();
  }

  void OnWriteDone(bool ok) override { start_.output()->OnWritten(ok); }
  void OnCancel() override { start_.OnCancel(); }
  void OnDone() override {
    service_->OnRpc("Generate", status(), received_);
    delete this;
  }

 private:
  InferenceService* const service_;
  const absl::Time received_;
  CallStart start_;
};

// One Complete RPC: the same, with all output in one answer. `response` is gRPC's, and lives until OnDone.
class InferenceService::CompleteCall final : public grpc::ServerUnaryReactor, public OutputWriter {
 public:
  CompleteCall(InferenceService* service, grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
               v1::GenerateResponse* response)
      : service_(service),
        response_(response),
        received_(service->options_.now()),
        start_(service, context, request, /*stream=*/false, this) {
    start_.Start();
  }

  void Write(const v1::GenerateResponse*) override {}  // an output that does not stream has an End only
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    status_ = status;
    if (last != nullptr && status.ok()) response_->Swap(last);
    Finish(ToGrpcStatus(status));
  }

  void OnCancel() override { start_.OnCancel(); }
  void OnDone() override {
    service_->OnRpc("Complete", status_, received_);
    delete this;
  }

 private:
  InferenceService* const service_;
  v1::GenerateResponse* const response_;
  const absl::Time received_;
  absl::Status status_;
  CallStart start_;  // last: it may end the call at once
};

// One Tokenize or Detokenize RPC, answered on a thread of the text pool. Frees itself in OnDone.
class InferenceService::TextCall final : public grpc::ServerUnaryReactor {
 public:
  // `answer` sets the response.
  TextCall(InferenceService* service, grpc::CallbackServerContext* context, const char* method, size_t bytes,
           std::function<absl::Status(const StopCheck& stop)> answer)
      : service_(service),
        context_(context),
        method_(method),
        key_(service->options_.registry->NewKey()),
        received_(service->options_.now()),
        answer_(std::move(answer)) {
    absl::Status s = service->SubmitText(context, key_, /*tenant=*/"", static_cast<int64_t>(bytes),
                                         [this](const absl::Status& waited, const StopCheck& stop) {
                                           absl::Status status = waited.ok() ? answer_(stop) : waited;
                                           service_->OnRefused(context_, status);
                                           End(std::move(status));
                                         });
    if (!s.ok()) End(std::move(s));
  }

  void OnCancel() override { service_->options_.texts->Cancel(key_); }
  void OnDone() override {
    service_->OnRpc(method_, status_, received_);
    delete this;
  }

 private:
  void End(absl::Status status) {
    const bool late = CauseOfCancel(DeadlineOf(*context_), service_->options_.now()) == EndCause::kDeadline;
    if (absl::IsCancelled(status) && late) {
      status = absl::DeadlineExceededError("the deadline passed before the text was done");
    }
    status_ = std::move(status);
    Finish(ToGrpcStatus(status_));
  }

  InferenceService* const service_;
  grpc::CallbackServerContext* const context_;
  const char* const method_;
  const RequestKey key_;
  const absl::Time received_;
  const std::function<absl::Status(const StopCheck& stop)> answer_;
  absl::Status status_;
};

InferenceService::InferenceService(Options options)
    : options_(std::move(options)),
      validation_{&options_.model, options_.text != nullptr ? options_.text : &tokens_only_, options_.limits,
                  options_.defaults, options_.finds_message_ends} {
  if (Metrics* metrics = options_.metrics; metrics != nullptr) {
    validation_.on_tokenised = [metrics](absl::Duration time) { metrics->OnTokenised(time); };
    validation_.on_rendered = [metrics](absl::Duration time) { metrics->OnRendered(time); };
  }
}

InferenceService::~InferenceService() {
  MutexLock lock(&mutex_);
  while (submits_ > 0) no_submit_.Wait(&mutex_);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                           const v1::GenerateRequest* request) {
  return new GenerateCall(this, context, request);
}

grpc::ServerUnaryReactor* InferenceService::Complete(grpc::CallbackServerContext* context,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  return new CompleteCall(this, context, request, response);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return new TextCall(this, context, "Tokenize", request->ByteSizeLong(), [=, this](const StopCheck& stop) {
    absl::StatusOr<v1::TokenizeResponse> answer = berth::Tokenize(*request, validation_, stop);
    if (answer.ok()) *response = *std::move(answer);
    return answer.status();
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return new TextCall(this, context, "Detokenize", request->ByteSizeLong(), [=, this](const StopCheck&) {
    absl::StatusOr<v1::DetokenizeResponse> answer = berth::Detokenize(*request, validation_);
    if (answer.ok()) *response = *std::move(answer);
    return answer.status();
  });
}

absl::Status InferenceService::SubmitText(grpc::CallbackServerContext* context, RequestKey key,
                                          const std::string& named, int64_t bytes, TextPool::Work work) {
  Caller caller = CallerOf(IdentityOf(options_.identities, *context), context->peer(), named);
  TextPool::Job job;
  job.key = key;
  job.client = std::move(caller.client);
  job.tenant = std::move(caller.tenant);
  job.bytes = bytes;
  job.deadline = DeadlineOf(*context);
  job.work = std::move(work);
  absl::Status status = options_.texts->Submit(std::move(job));
  if (!status.ok()) OnRefused(context, status);
  return status;
}

absl::StatusOr<InferenceService::Ticket> InferenceService::Arrive(grpc::CallbackServerContext* context,
                                                                  absl::string_view field, const std::string& named,
                                                                  int64_t priority) {
  const absl::StatusOr<std::string> tenant = TenantOf(IdentityOf(options_.identities, *context), field, named);
  absl::StatusOr<Ticket> ticket = Ticket();
  if (!tenant.ok()) {
    ticket = tenant.status();
  } else if (options_.admission != nullptr) {
    ticket = options_.admission->Arrive(*tenant);
  }
  if (ticket.ok()) {
    const absl::Status s = options_.engine->CheckArrival(DeadlineOf(*context), *tenant, priority);
    if (!s.ok() && *ticket != nullptr) (*ticket)->Withdraw();
    if (!s.ok()) ticket = s;
  }
  if (!ticket.ok()) OnRefused(context, ticket.status());
  return ticket;
}

absl::Status InferenceService::Pay(const Request& request, Admission::Ticket* ticket) const {
  const int64_t replayed = request.progress == nullptr ? 0 : static_cast<int64_t>(request.progress->tokens.size());
  return ticket->Pay({.sequences = request.num_sequences(),
                      .prompt_tokens = static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size()),
                      .output_tokens = request.max_tokens * request.num_sequences() - replayed,
                      .replayed_tokens = replayed,
                      .cache_bytes = options_.cache_bytes ? options_.cache_bytes(request) : 0});
}

absl::StatusOr<ValidatedRequest> InferenceService::Validate(const v1::GenerateRequest& in, bool stream,
                                                            const StopCheck& stop) const {
  absl::StatusOr<ValidatedRequest> valid = ValidateGenerate(in, validation_, RandomSeed(), stop);
  if (valid.ok() && in.has_session_id() && options_.sessions == nullptr) valid = SessionsAreOff();
  if (absl::Status s = valid.ok() && stream ? CheckStreamed(valid->output) : absl::OkStatus(); !s.ok()) valid = s;
  return valid;
}

absl::Status InferenceService::Begin(grpc::CallbackServerContext* context, absl::StatusOr<ValidatedRequest> valid,
                                     Ticket ticket, bool stream, OutputWriter* writer, CallOutput* output) {
  if (absl::IsCancelled(valid.status())) return valid.status();
  if (valid.ok() && output->cause() != EndCause::kNone) return absl::CancelledError("cancelled by the client");
  if (!valid.ok()) {
    OnRefused(context, valid.status());
    return valid.status();
  }
  absl::StatusOr<RegisteredRequest> registered =
      Register(context, *std::move(valid), std::move(ticket), stream, writer);
  if (!registered.ok()) return registered.status();
  output->Set(registered->output);
  absl::Status status = Submit(context, *std::move(registered));
  if (!status.ok()) output->Clear();  // else the call may be gone by now
  return status;
}

absl::StatusOr<InferenceService::RegisteredRequest> InferenceService::Register(grpc::CallbackServerContext* context,
                                                                               ValidatedRequest valid, Ticket ticket,
                                                                               bool stream, OutputWriter* writer) {
  Request& request = valid.request;
  request.key = options_.registry->NewKey();
  request.arrival = options_.now();
  request.deadline = DeadlineOf(*context);
  const Identity identity = IdentityOf(options_.identities, *context);
  if (identity.authenticated) {
    request.cache_salt = identity.tenant;
    if (valid.session_request.has_value()) valid.session_request->set_cache_salt(identity.tenant);
  }
  absl::Status s;
  if (valid.structure.has_value() && options_.grammars == nullptr) {
    s = Invalid("structure: this server does not compile grammars");
  }
  if (s.ok() && ticket != nullptr) s = Pay(request, ticket.get());
  absl::StatusOr<std::shared_ptr<RequestOutput>> output = nullptr;
  if (s.ok()) {
    output = AddOutput(&valid, IdSpaceOf(identity), ticket, stream, writer);
  } else {
    output = s;
  }
  if (!output.ok()) {
    if (ticket != nullptr) ticket->Withdraw();
    OnRefused(context, output.status());
    return output.status();
  }
  LogBegin(*context, **output, static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size()));
  Caller caller = CallerOf(identity, context->peer(), request.cache_salt);
  return RegisteredRequest{std::move(request), std::move(ticket), *std::move(output), std::move(valid.structure),
                           std::move(caller)};
}

absl::StatusOr<std::shared_ptr<RequestOutput>> InferenceService::AddOutput(ValidatedRequest* valid,
                                                                           std::string id_space, const Ticket& ticket,
                                                                           bool stream, OutputWriter* writer) {
  const Request& request = valid->request;
  if (request.saved) {
    const absl::Status s = options_.sessions->Begin(request.key, MakeSessionFile(*valid, options_.sessions->model()));
    if (!s.ok()) return s;
  }
  std::shared_ptr<RequestOutput> output = MakeOutput(valid, std::move(id_space), ticket, stream, writer);
  if (absl::Status s = options_.registry->Add(output); !s.ok()) {
    if (request.saved) options_.sessions->Withdraw(request.key);
    return s;
  }
  options_.dispatcher->Register(output);
  return output;
}

absl::Status InferenceService::Submit(grpc::CallbackServerContext* context, RegisteredRequest registered) {
  AddSubmits(1);
  const absl::Cleanup done = [this] { AddSubmits(-1); };
  // Ours, since the writer may be gone as soon as the engine has the request.
  const std::shared_ptr<RequestOutput> output = registered.output;
  const Ticket ticket = registered.ticket;
  if (registered.structure.has_value()) {
    const GrammarSpec spec = *registered.structure;
    const Caller caller = registered.caller;
    auto waiting = std::make_shared<RegisteredRequest>(std::move(registered));
    options_.grammars->Compile(
        output->key(), spec,
        [this, context, waiting](absl::StatusOr<CompiledGrammar> grammar) {
          OnCompiled(context, std::move(*waiting), std::move(grammar));
        },
        caller);
    output->OnSubmitted();  // repeats a cancellation that the compiler did not know of
    return absl::OkStatus();
  }
  absl::Status status = SubmitToEngine(std::move(registered.request), output.get());
  if (!status.ok()) Withdraw(context, *output, ticket, status);
  return status;
}

void InferenceService::OnCompiled(grpc::CallbackServerContext* context, RegisteredRequest registered,
                                  absl::StatusOr<CompiledGrammar> grammar) {
  AddSubmits(1);
  const absl::Cleanup done = [this] { AddSubmits(-1); };
  RegisteredRequest own = std::move(registered);  // freed before the service may go
  absl::Status status = grammar.ok() ? absl::OkStatus() : NameStructure(*own.structure, grammar.status());
  if (status.ok()) {
    own.request.constraint = std::move(grammar->start);
    own.output->Warn(std::move(grammar->warnings));
    status = SubmitToEngine(std::move(own.request), own.output.get());
  }
  if (status.ok()) return;
  Withdraw(context, *own.output, own.ticket, status);
  own.output->Refuse(std::move(status));
}

absl::Status InferenceService::SubmitToEngine(Request request, RequestOutput* output) {
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
  if (absl::Status s = options_.engine->Submit(std::move(request)); !s.ok()) return s;
  output->OnSubmitted();
  if (options_.metrics != nullptr) options_.metrics->OnQueued(prompt_tokens);
  return absl::OkStatus();
}

void InferenceService::Withdraw(grpc::CallbackServerContext* context, const RequestOutput& output, const Ticket& ticket,
                                const absl::Status& why) {
  options_.dispatcher->Unregister(output.key());
  options_.registry->Remove(output.id_space(), output.request_id());
  if (options_.sessions != nullptr) options_.sessions->Withdraw(output.key());
  if (ticket != nullptr) ticket->Withdraw();
  OnRefused(context, why);
}

void InferenceService::Cancel(RequestKey key, FinishReason reason, int64_t prompt_tokens) {
  if (options_.grammars == nullptr || !options_.grammars->Cancel(key)) return options_.engine->Cancel(key, reason);
  // The engine does not know the request, so its end comes from here, and so does the word that no save follows. It
  // counts as finished, so also as accepted.
  if (options_.sessions != nullptr) options_.sessions->Withdraw(key);
  options_.dispatcher->DeliverSave({.key = key, .last = true});
  if (options_.metrics != nullptr) options_.metrics->OnQueued(prompt_tokens);
  TokenEvent end;
  end.key = key;
  end.finish = reason;
  std::vector<TokenEvent> events = {std::move(end)};
  options_.dispatcher->Deliver(&events);
}

void InferenceService::AddSubmits(int64_t count) {
  MutexLock lock(&mutex_);
  submits_ += count;
  if (submits_ == 0) no_submit_.SignalAll();
}

std::shared_ptr<RequestOutput> InferenceService::MakeOutput(ValidatedRequest* valid, std::string id_space,
                                                            const Ticket& ticket, bool stream, OutputWriter* writer) {
  const Request& request = valid->request;
  RequestOutput::Options out;
  out.key = request.key;
  out.request_id = valid->request_id.empty() ? absl::StrFormat("req-%016x%08x", RandomSeed(), request.key)
                                             : std::move(valid->request_id);
  out.id_space = std::move(id_space);
  out.tenant = request.cache_salt;
  out.arrival = request.arrival;
  out.num_prompt_tokens = static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
  if (valid->output.return_prompt_token_ids) {
    out.prompt_token_ids = request.encoder_tokens.empty() ? request.prompt : request.encoder_tokens;
  }
  out.output = std::move(valid->output);
  out.stream = stream;
  out.undelivered = options_.registry->undelivered();
  out.hooks = MakeHooks(out.num_prompt_tokens, out.id_space, ticket);
  return std::make_shared<RequestOutput>(std::move(out), validation_.text, writer);
}

RequestOutput::Hooks InferenceService::MakeHooks(int64_t prompt_tokens, const std::string& id_space,
                                                 const Ticket& ticket) {
  RequestOutput::Hooks hooks;
  hooks.cancel = [this, prompt_tokens](RequestKey key, FinishReason reason) { Cancel(key, reason, prompt_tokens); };
  hooks.cancel_output = [engine = options_.engine](RequestKey key, int32_t output, FinishReason reason) {
    engine->CancelOutput(key, output, reason);
  };
  hooks.set_paused = [engine = options_.engine](RequestKey key, bool paused) {
    paused ? engine->Pause(key) : engine->Unpause(key);
  };
  hooks.ended = [this, id_space, ticket](const EndedRequest& request) {
    if (ticket != nullptr) ticket->OnEnded(request.num_tokens);
    OnEnded(id_space, request);
  };
  hooks.first_token = [metrics = options_.metrics, ticket](const RequestTimes& times) {
    if (ticket != nullptr) ticket->OnFirstToken();
    if (metrics != nullptr) metrics->OnFirstToken(times);
  };
  if (Metrics* metrics = options_.metrics; metrics != nullptr) {
    hooks.inter_token = [metrics](absl::Duration gap) { metrics->OnInterToken(gap); };
  }
  return hooks;
}

void InferenceService::OnEnded(const std::string& id_space, const EndedRequest& request) {
  options_.registry->Remove(id_space, std::string(request.request_id));
  if (options_.metrics != nullptr) {
    options_.metrics->OnFinished(request.reason, request.times, request.num_prompt_tokens, request.num_tokens);
  }
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

void InferenceService::OnRefused(grpc::CallbackServerContext* context, const absl::Status& status) {
  AddRetryAdvice(status, context);
  CountRefusal(status);
}

void InferenceService::CountRefusal(const absl::Status& status) {
  const std::optional<RefusalReason> reason = ReasonOf(status);
  if (options_.metrics != nullptr && reason.has_value()) options_.metrics->OnRejected(*reason);
}

void InferenceService::OnRpc(const char* method, const absl::Status& status, absl::Time start) {
  if (options_.metrics == nullptr) return;
  options_.metrics->OnRpc(kService, method, ToGrpcStatus(status).error_code(), options_.now() - start);
}

}  // namespace berth
