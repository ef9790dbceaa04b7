// berth.v1.Inference on gRPC's callback API: checks and tokenises a request, submits it to the engine, and streams what
// comes back. Requests with a text or a structure are checked on the text pool's threads, those with token ids on
// gRPC's. Thread-safe.
//
// Reactions never block and never touch a tensor. A request lives from Submit until the engine's last event (or a stop
// string); its RPC until gRPC is done with it. Neither frees the other: they share the RequestOutput.
//
// Order of shutdown: Engine::Drain; WaitUntilIdle; EndAll for what is left; grpc::Server::Shutdown; then the services,
// the engine and the dispatcher go, in this order.
#ifndef BERTH_SERVER_API_INFERENCE_SERVICE_H_
#define BERTH_SERVER_API_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "berth/v1/inference.grpc.pb.h"
#include "models/model_runner.h"
#include "scheduler/engine.h"
#include "scheduler/mutex.h"
#include "scheduler/steady_clock.h"
#include "server/api/admission.h"
#include "server/api/call_output.h"
#include "server/api/grammar_compiler.h"
#include "server/api/identity.h"
#include "server/api/output_dispatcher.h"
#include "server/api/request_output.h"
#include "server/api/request_registry.h"
#include "server/api/text_codec.h"
#include "server/api/text_pool.h"
#include "server/api/tokens_only.h"
#include "server/api/validation.h"
#include "server/metrics/metrics.h"
#include "server/storage/session_store.h"
#include "text/grammar_spec.h"

namespace berth {

// On the steady clock. gRPC keeps the deadline on such a clock too, and says it on the wall clock as that is now.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// Says why a cancelled call ended: gRPC also reports a call past its deadline as cancelled.
inline EndCause CauseOfCancel(absl::Time deadline, absl::Time now) {
  return now >= deadline ? EndCause::kDeadline : EndCause::kClientGone;
}

class InferenceService final : public v1::Inference::CallbackService {
 public:
  // All pointers must outlive the service.
  struct Options {
    Engine* engine = nullptr;
    OutputDispatcher* dispatcher = nullptr;      // the engine's sink
    RequestRegistry* registry = nullptr;         // shared with ControlService
    const TextCodec* text = nullptr;             // null: the model has no tokenizer, and takes token ids only
    Metrics* metrics = nullptr;                  // may be null
    SessionStore* sessions = nullptr;            // null: requests with a session_id are refused
    GrammarCompiler* grammars = nullptr;         // null: requests with a structure are refused
    TextPool* texts = nullptr;                   // works on prompts, chats and structures
    Admission* admission = nullptr;              // null: tenants have no limits
    const IdentitySource* identities = nullptr;  // null: authentication is off
    // The most cache that a request may come to hold; empty: 0.
    std::function<int64_t(const Request&)> cache_bytes;
    ModelInfo model;
    RequestLimits limits;
    bool finds_message_ends = false;  // see ValidationContext
    GenerationDefaults defaults;
    std::function<absl::Time()> now = SteadyNow;
  };

  // The start of a call that generates: server/api/call_start.h. Other services use it for their own messages.
  class CallStart;

  explicit InferenceService(Options options);
  // Waits until no thread is in Submit any more.
  ~InferenceService() override;

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

  // A request's place with its tenant; null without Options::admission.
  using Ticket = std::shared_ptr<Admission::Ticket>;
  // Before anything is done for a request: RESOURCE_EXHAUSTED when its tenant is at a limit, INVALID_ARGUMENT when the
  // caller must not name the tenant `named`, see TenantOf. `field` is the name of the tenant's field. Counts the
  // refusal.
  absl::StatusOr<Ticket> Arrive(grpc::CallbackServerContext* context, absl::string_view field, const std::string& named,
                                int64_t priority);

  // A request that has its key and its output, and that the engine does not know yet.
  struct RegisteredRequest {
    Request request;
    Ticket ticket;
    std::shared_ptr<RequestOutput> output;
    std::optional<GrammarSpec> structure;
    Caller caller;  // whose turn the structure takes
  };
  // Starts a request in two steps. Register gives it to the caller's tenant, pays for it with its ticket, gives it an
  // output that writes to `writer`, and takes its id. Keep the output, then call Submit: from then on it writes, and
  // `writer` may be gone when Submit returns. A cancellation that reaches the output between the two is not lost. After
  // an error nothing is registered and nothing is written, and the ticket is withdrawn; the error's trailing metadata
  // is in `context`.
  absl::StatusOr<RegisteredRequest> Register(grpc::CallbackServerContext* context, ValidatedRequest valid,
                                             Ticket ticket, bool stream, OutputWriter* writer);
  // A request with a structure is compiled first, and submitted on the compiler's thread; an error then goes to the
  // output. On another thread than gRPC's, the call may even end, and gRPC's server with it, before Submit returns.
  absl::Status Submit(grpc::CallbackServerContext* context, RegisteredRequest registered) ABSL_LOCKS_EXCLUDED(mutex_);

  const ValidationContext& validation() const { return validation_; }
  const IdentitySource* identities() const { return options_.identities; }
  // Counts a request that was refused before Register.
  void CountRefusal(const absl::Status& status);

  // Ends every request that is under way with UNAVAILABLE: the grace time is over.
  void EndAll() {
    options_.registry->CancelAll(EndCause::kShutdown);
    options_.texts->Stop();
    options_.registry->CancelAll(EndCause::kShutdown);  // those that were being checked
  }

 private:
  class GenerateCall;
  class CompleteCall;
  class EmbedCall;  // embed_call.cc
  class TextCall;

  // Blocks while it tokenises.
  absl::StatusOr<ValidatedRequest> Validate(const v1::GenerateRequest& request, bool stream,
                                            const StopCheck& stop) const;
  absl::StatusOr<ValidatedRequest> Validate(const v1::EmbedRequest& request, bool /*stream*/,
                                            const StopCheck& stop) const {
    return ValidateEmbed(request, validation_, stop);
  }
  // Starts the request if it is valid. Sets `output` before the first event can come; none on error.
  absl::Status Begin(grpc::CallbackServerContext* context, absl::StatusOr<ValidatedRequest> valid, Ticket ticket,
                     bool stream, OutputWriter* writer, CallOutput* output);
  // Has the text pool do `work` when it is the client's turn. Tenants take turns; without authentication, addresses
  // do, and the tenants that each names. RESOURCE_EXHAUSTED: the pool is full.
  absl::Status SubmitText(grpc::CallbackServerContext* context, RequestKey key, const std::string& named, int64_t bytes,
                          TextPool::Work work);
  absl::Status Pay(const Request& request, Admission::Ticket* ticket) const;
  // Registers a request that has paid.
  absl::StatusOr<std::shared_ptr<RequestOutput>> AddOutput(ValidatedRequest* valid, std::string id_space,
                                                           const Ticket& ticket, bool stream, OutputWriter* writer);
  std::shared_ptr<RequestOutput> MakeOutput(ValidatedRequest* valid, std::string id_space, const Ticket& ticket,
                                            bool stream, OutputWriter* writer);
  RequestOutput::Hooks MakeHooks(int64_t prompt_tokens, const std::string& id_space, const Ticket& ticket);
  // Ends a request that runs, or waits for its grammar.
  void Cancel(RequestKey key, FinishReason reason, int64_t prompt_tokens);
  absl::Status SubmitToEngine(Request request, RequestOutput* output);
  void OnCompiled(grpc::CallbackServerContext* context, RegisteredRequest registered,
                  absl::StatusOr<CompiledGrammar> grammar) ABSL_LOCKS_EXCLUDED(mutex_);
  // Undoes Register, for a request that the engine does not know.
  void Withdraw(grpc::CallbackServerContext* context, const RequestOutput& output, const Ticket& ticket,
                const absl::Status& why);
  void OnEnded(const std::string& id_space, const EndedRequest& request);
  void OnRefused(grpc::CallbackServerContext* context, const absl::Status& status);
  void OnRpc(const char* method, const absl::Status& status, absl::Time start);
  void AddSubmits(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const TokensOnly tokens_only_;
  ValidationContext validation_;  // constant once constructed

  Mutex mutex_;
  CondVar no_submit_;
  int64_t submits_ ABSL_GUARDED_BY(mutex_) = 0;  // threads in Submit, or starting a call
};

}  // namespace berth

#endif  // BERTH_SERVER_API_INFERENCE_SERVICE_H_
