// The running server: engine, services, gRPC and exporter around a loaded model, in the order in which they need each
// other. Torch-free: what the model is made of comes as Parts.
//
// Start, UpdateHealth, Drain and the destructor from one thread; the work is done on gRPC's threads, the engine's, the
// dispatcher's and the exporter's.
#ifndef BERTH_SERVER_SERVER_H_
#define BERTH_SERVER_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/cache.h"
#include "cache/storage.h"
#include "models/generation_config.h"
#include "models/model_runner.h"
#include "scheduler/engine.h"
#include "scheduler/policy/fair_policy.h"
#include "server/access.h"
#include "server/admission/admission.h"
#include "server/admission/audit.h"
#include "server/admission/tenants.h"
#include "server/api/control_service.h"
#include "server/api/inference_service.h"
#include "server/api/reflection_service.h"
#include "server/api/rpc.h"
#include "server/api/sessions_service.h"
#include "server/auth/authenticator.h"
#include "server/config.h"
#include "server/delivery/output_dispatcher.h"
#include "server/delivery/request_registry.h"
#include "server/delivery/text_codec.h"
#include "server/listeners.h"
#include "server/metrics/exporter.h"
#include "server/metrics/metrics.h"
#include "server/process/watchdog.h"
#include "server/request/grammar_compiler.h"
#include "server/request/intake.h"
#include "server/request/operations.h"
#include "server/request/tokens_only.h"
#include "server/request/turn_pool.h"
#include "server/storage/disk_tier.h"
#include "server/storage/sessions.h"
#include "server/vllm/vllm_service.h"

namespace berth {

class Server {
 public:
  // A model ready to run. The pointers must outlive the server.
  struct Parts {
    CachePlan plan;
    GenerationDefaults defaults;
    int64_t max_sequence_tokens = 0;  // the engine accepts less when the arena holds less
    ArenaStorage* storage = nullptr;
    ModelRunner* runner = nullptr;
    // Called on the engine's thread before its first step. An error is that of Start.
    std::function<absl::Status()> warm_up = [] { return absl::OkStatus(); };
    // By default as of a model without a tokenizer: no text and no grammars. Never null.
    const TextCodec* text = NoText();
    GrammarCompiler::CompileFunction compile_grammar = GrammarCompiler::CompileNone;
    std::string libtorch_version;
    std::string cpu_capability;
    std::string model_fingerprint;  // of the checkpoint; read only where there is a session_dir or a disk_tier
  };

  // Serves from its return on. UNAVAILABLE: cannot listen on an address; FAILED_PRECONDITION: the session_dir or
  // the disk_tier cannot be used; the engine's and the cache's codes where the arena is too small.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config, Parts parts);

  // Ends what is left with UNAVAILABLE, as Drain with no grace.
  ~Server();

  // Tells gRPC's health service whether the engine lives, and has sessions deleted that are too old; call it now and
  // then. Services "" and "liveness" serve while it does and no step hangs, draining or not; "readiness" and the API's
  // services while requests are taken.
  void UpdateHealth();

  // Reads again the files that have changed: tenants and certificates. Call it every second or so.
  void ReloadChangedFiles();

  // Whether an operator has asked for a drain. New requests are then refused already; call Drain soon.
  bool draining() const { return draining_.load(); }
  // Refuses new requests, waits up to `grace` for those under way, ends the rest with UNAVAILABLE, and stops listening.
  void Drain(absl::Duration grace);

  int port() const { return listeners_->listen().port; }
  const Listeners& listeners() const { return *listeners_; }
  // 0: no exporter.
  int metrics_port() const { return exporter_ == nullptr ? 0 : exporter_->port(); }
  // The file of --tenants. Never null.
  TenantsFile* tenants() const { return files_.tenants.get(); }
  const FlightRecorder& recorder() const { return engine_->recorder(); }
  // What the engine accepts.
  int64_t max_sequence_tokens() const { return engine_->max_sequence_tokens(); }
  int64_t max_encoder_tokens() const { return engine_->max_encoder_tokens(); }

 private:
  Server(const Config& config, Parts parts);

  // The files of access, and the folders of sessions and of the disk tier.
  absl::Status OpenFiles();
  absl::Status StartEngine();
  void StartGrammarCompiler();
  void StartPools();
  void MakeIntake();
  void MakeServices();
  void MakeVllmService();
  // The names of the services, and reflection if it is on.
  std::vector<std::string> MakeReflection();
  absl::Status Listen();
  absl::Status StartExporter();
  ServerLoad Load() const;
  // The most cache that the request may come to hold.
  int64_t CacheBytes(const Request& request) const;
  RequestLimits Limits() const;
  RpcOptions RpcOptionsOf() { return {.metrics = &metrics_, .identities = authenticator_.get(), .audit = &audit_}; }
  v1::Limits LimitsProto() const;
  void SetReady(bool ready);
  // Thread-safe.
  void BeginDrain();
  // Calls wait(until) with times up to `end` until it returns true, and keeps health and files up to date between the
  // calls. False: it never did.
  bool WaitInParts(absl::Time end, const std::function<bool(absl::Time until)>& wait);

  const Config config_;
  const Parts parts_;

  // Each uses those above it; destroyed from the last to the first.
  AccessFiles files_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<Admission> admission_;
  Audit audit_;
  Metrics metrics_;
  OutputDispatcher dispatcher_;
  std::unique_ptr<Sessions> sessions_ = std::make_unique<NoSessions>();
  std::unique_ptr<DiskTier> disk_tier_;  // null: there is none
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<FairPolicy> fair_policy_;  // null: first come, first served
  std::unique_ptr<Watchdog> watchdog_;       // outlives the engine, whose last step may hang
  std::unique_ptr<Engine> engine_;
  RequestRegistry registry_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<TurnPool> texts_;
  std::unique_ptr<TurnPool> loads_;
  std::unique_ptr<Intake> intake_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<SessionsService> sessions_service_;
  std::unique_ptr<Operations> operations_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<VllmService> vllm_;
  std::unique_ptr<DescribedServices> described_;  // null: there is no reflection
  std::unique_ptr<ReflectionService<ReflectionV1>> reflection_;
  std::unique_ptr<ReflectionService<ReflectionV1Alpha>> reflection_alpha_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Listeners> listeners_;
  std::unique_ptr<Exporter> exporter_;

  std::atomic<bool> draining_{false};
  std::atomic<bool> ready_{false};  // requests are taken
  bool stopped_ = false;            // Drain was called
  bool told_of_access_ = false;     // that credentials came with a reload, and callers cannot show them
  bool alive_ = true;               // what the health service was told last
};

}  // namespace berth

#endif  // BERTH_SERVER_SERVER_H_
