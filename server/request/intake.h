// The one way in for every request, whatever its protocol: takes a place with the tenant, checks, registers, has its
// grammar compiled, and submits. stages.h says what each stage holds. Texts and structures are checked on the text
// pool's threads, and sessions on the store's, one at a time. A request with token ids is checked on the caller's
// thread.
//
// A service gives Start the message, who calls, and a writer. All that follows comes to the writer, last its End: the
// answer, or why there is none. So a protocol translates messages, and nothing else. Thread-safe; Start never waits for
// a step, a disk or a text.
//
// A request lives from Submit until the engine's last event (or a stop string); its call until the protocol is done
// with it. Neither frees the other: they share the RequestOutput.
#ifndef BERTH_SERVER_REQUEST_INTAKE_H_
#define BERTH_SERVER_REQUEST_INTAKE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "models/model_runner.h"
#include "server/delivery/request_output.h"
#include "server/metrics/metrics.h"
#include "server/request/call_info.h"
#include "server/request/grammar_compiler.h"
#include "server/request/in_flight.h"
#include "server/request/message.h"
#include "server/request/stages.h"
#include "server/request/turn_pool.h"
#include "server/request/validated_request.h"

namespace berth {

class Intake {
 public:
  // All pointers are set, and must outlive the intake.
  struct Options {
    Desk desk;
    TurnPool* texts = nullptr;  // works on prompts, chats and structures
    TurnPool* loads = nullptr;  // waits for sessions that are read
    Metrics* metrics = nullptr;
    GrammarCompiler* grammars = nullptr;  // one that compiles none: CompileNone
    const TextCodec* text = nullptr;      // without a tokenizer: NoText
    ModelInfo model;
    RequestLimits limits;
    bool finds_message_ends = false;  // see ValidationContext
    GenerationDefaults defaults;
  };

  // One request on its way. Its call keeps it. Thread-safe.
  class Handle;

  explicit Intake(Options options);
  // Waits until no thread starts a request any more.
  ~Intake();

  // Starts a request. `message` and `writer` live until the writer's End, which may come before this returns, and on
  // another thread. Start a call's request where the call cannot go away yet. Never null. Once it is checked, the
  // message is emptied (FreeMessage).
  std::shared_ptr<Handle> Start(const Message& message, CallInfo call, bool stream, OutputWriter* writer);

  // Has the text pool do `work` when it is the caller's turn. Tenants take turns; without authentication, addresses
  // do, and the tenants that each names. RESOURCE_EXHAUSTED: the pool is full.
  absl::Status SubmitText(RequestKey key, const CallInfo& call, const std::string& named_tenant, int64_t bytes,
                          TurnPool::Work work) {
    return SubmitTo(options_.texts, key, call, named_tenant, bytes, std::move(work));
  }
  TurnPool* texts() const { return options_.texts; }
  RequestRegistry* registry() const { return options_.desk.registry; }
  const ValidationContext& validation() const { return validation_; }
  absl::Time now() const { return options_.desk.now(); }

  // Counts a refusal, for a request that Start has not seen.
  void CountRefusal(const absl::Status& status);

  // Ends every request that is under way with UNAVAILABLE: the grace time is over.
  void EndAll();
  // Waits until every call has its answer, or cannot get it any more, at most until then by SteadyNow.
  bool WaitForCalls(absl::Time until) { return calls_->WaitUntilNone(until); }

 private:
  // What a request's output asks for and tells.
  class Owner;

  absl::Status SubmitTo(TurnPool* pool, RequestKey key, const CallInfo& call, const std::string& named_tenant,
                        int64_t bytes, TurnPool::Work work);
  // Registers a request that is checked, and has it compiled and submitted. `output` is set before anything can come.
  // An error is a refusal, and nothing is written.
  absl::Status Begin(const CallInfo& call, Checked checked, bool stream, OutputWriter* writer,
                     const std::function<void(std::shared_ptr<RequestOutput>)>& set_output);
  // From here on what happens to the request comes by its output.
  void Compile(Registered registered, const CallInfo& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCompiled(RequestKey key, absl::StatusOr<CompiledGrammar> grammar) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Registered> TakeCompiling(RequestKey key) ABSL_LOCKS_EXCLUDED(mutex_);
  void Submit(Compiled compiled);
  void Refuse(Registered registered, const absl::Status& status);
  // Ends a request that runs, or waits for its grammar.
  void Cancel(RequestKey key, FinishReason reason) ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<RequestOutput> MakeOutput(ValidatedRequest* valid, const std::string& id_space, const Ticket& ticket,
                                            bool stream, OutputWriter* writer);
  void OnEnded(const std::string& id_space, const EndedRequest& request);

  const Options options_;
  ValidationContext validation_;                                          // constant once constructed
  InFlight in_flight_;                                                    // threads that start a request, or submit one
  const std::shared_ptr<InFlight> calls_ = std::make_shared<InFlight>();  // their handles

  Mutex mutex_;
  std::unordered_map<RequestKey, Registered> compiling_ ABSL_GUARDED_BY(mutex_);
};

class Intake::Handle : public std::enable_shared_from_this<Handle> {
 public:
  // `writer`'s write is done. `ok` false: the client is out of reach.
  void OnWritten(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // The call was cancelled by its client, or its deadline has passed.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class Intake;

  Handle(Intake* intake, const Message& message, CallInfo call, bool stream, OutputWriter* writer);

  void Start();
  // When it is the tenant's turn, reads the session, and continues on the store's thread.
  void Load(const std::string& tenant);
  void OnLoaded(absl::StatusOr<SessionFileContent> loaded);
  void Begin(absl::StatusOr<ValidatedRequest> valid) ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why the work on its text was stopped.
  absl::Status WhyStopped() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetOutput(std::shared_ptr<RequestOutput> output) ABSL_LOCKS_EXCLUDED(mutex_);
  EndCause cause() const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<InFlight> calls_;  // it may outlive the intake
  const Undo counted_;
  Intake* const intake_;
  const Message message_;
  const CallInfo call_;
  const bool stream_;
  OutputWriter* const writer_;
  const RequestKey work_key_;         // of the work on its text, and of the reading of its session
  std::optional<Admitted> admitted_;  // until Begin; one thread at a time

  mutable Mutex mutex_;
  std::shared_ptr<RequestOutput> output_ ABSL_GUARDED_BY(mutex_);
  EndCause cause_ ABSL_GUARDED_BY(mutex_) = EndCause::kNone;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_INTAKE_H_
