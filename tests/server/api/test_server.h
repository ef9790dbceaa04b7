// The services over a real engine, cache and gRPC server, with a model without weights whose steps a test can hold up.
#ifndef BERTH_TESTS_SERVER_API_TEST_SERVER_H_
#define BERTH_TESTS_SERVER_API_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "berth/v1/sessions.grpc.pb.h"
#include "scheduler/engine.h"
#include "scheduler/tiers/prefix_disk.h"
#include "server/admission/admission.h"
#include "server/admission/audit.h"
#include "server/admission/tenants.h"
#include "server/api/control_service.h"
#include "server/api/identity.h"
#include "server/api/inference_service.h"
#include "server/api/rpc.h"
#include "server/api/sessions_service.h"
#include "server/delivery/output_dispatcher.h"
#include "server/delivery/request_registry.h"
#include "server/metrics/metrics.h"
#include "server/request/grammar_compiler.h"
#include "server/request/intake.h"
#include "server/request/operations.h"
#include "server/request/turn_pool.h"
#include "server/storage/session_store.h"
#include "server/storage/sessions.h"
#include "tests/server/delivery/fake_text_codec.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

namespace berth {

// Lets the engine's steps through one by one, or all. Thread-safe.
class StepGate {
 public:
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) { Set(0); }
  void Open() ABSL_LOCKS_EXCLUDED(mutex_) { Set(int64_t{1} << 60); }
  void Allow(int64_t steps) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    allowed_ += steps;
    changed_.SignalAll();
  }
  // Lets steps through one by one until the condition holds, at most `limit`; returns how many. They come slower and
  // slower, down to 50 a second, so that another thread has done its part long before the last of many steps.
  int64_t AllowUntil(const std::function<bool()>& condition, int64_t limit = 9000) ABSL_LOCKS_EXCLUDED(mutex_) {
    int64_t steps = 0;
    for (; steps < limit && !condition(); ++steps) {
      Allow(1);
      absl::SleepFor(absl::Milliseconds(std::min<int64_t>(1 + steps / 10, 20)));
    }
    return steps;
  }
  // Does that until the future has its result, and returns it.
  template <typename T>
  T AllowUntilReady(std::future<T> future) {
    AllowUntil([&future] { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    return future.get();
  }
  // Called by a step.
  void Pass() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (allowed_ == 0) changed_.Wait(&mutex_);
    --allowed_;
  }

 private:
  void Set(int64_t allowed) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    allowed_ = allowed;
    changed_.SignalAll();
  }

  Mutex mutex_;
  CondVar changed_;
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = int64_t{1} << 60;
};

struct TestServer {
  struct Options {
    int64_t max_queue = 1024;
    int64_t max_running = 64;
    int64_t max_sequence_tokens = 10000;
    bool has_encoder = false;
    std::string session_dir;  // "": no sessions
    int64_t session_dir_limit = 1 << 20;
    GrammarCompiler::CompileFunction compile_grammar = GrammarCompiler::CompileNone;
    std::string tenants = "{}";                  // the file of --tenants
    const IdentitySource* identities = nullptr;  // null: authentication is off
    Audit* audit = nullptr;
    bool share_prefixes = false;
    int64_t host_tier_bytes = 0;
    PrefixDisk* disk = nullptr;
    absl::Duration operations_timeout = kHangLimit;
    absl::Duration unread_timeout = absl::Minutes(1);
    std::function<absl::Time()> now = SteadyNow;  // of the services
    // May hold up or change the report of a save, on the store's thread.
    std::function<void(SaveEvent*)> on_save = [](SaveEvent*) {};
    // Makes one more service, once the others are there.
    std::function<std::unique_ptr<grpc::Service>(TestServer*)> make_service;
    std::function<void()> drain = [] {};
  };

  TestServer() : TestServer(Options{}) {}
  explicit TestServer(const Options& options)
      : cache({options.has_encoder ? CrossLayer() : StaticLayer(), RecurrentLayer()}, /*arena_size=*/4096),
        runner(cache.cache.get()) {
    runner.on_run = [this](const StepPlan&) {
      gate.Pass();
      return step_status;
    };
    Engine::Options engine_options;
    engine_options.max_queue = options.max_queue;
    engine_options.scheduler.max_running = options.max_running;
    engine_options.scheduler.max_sequence_tokens = options.max_sequence_tokens;
    engine_options.check_integrity = true;
    engine_options.unread_timeout = options.unread_timeout;
    engine_options.scheduler.share_prefixes = options.share_prefixes;
    engine_options.scheduler.swap.host_tier_bytes = options.host_tier_bytes;
    engine_options.scheduler.prefixes = {
        .disk = options.disk, .disk_limit_bytes = 1 << 20, .idle = absl::ZeroDuration()};
    if (!options.session_dir.empty()) {
      auto opened = SessionStore::Open({.folder = options.session_dir,
                                        .limit_bytes = options.session_dir_limit,
                                        .model = "fake",
                                        .on_save = [this, on_save = options.on_save](SaveEvent save) {
                                          on_save(&save);
                                          dispatcher.DeliverSave(std::move(save));
                                        }});
      if (!opened.ok()) ABSL_RAW_LOG(FATAL, "%s", opened.status().ToString().c_str());
      sessions = *std::move(opened);
    }
    engine_options.scheduler.save_sink = sessions.get();
    auto made = Engine::Create(cache.cache.get(), &runner, &dispatcher, engine_options);
    if (!made.ok()) ABSL_RAW_LOG(FATAL, "%s", made.status().ToString().c_str());
    engine = *std::move(made);
    const ModelInfo model = runner.info();
    Intake::Options intake_options;
    intake_options.desk = {.engine = engine.get(),
                           .admission = &admission,
                           .dispatcher = &dispatcher,
                           .registry = &registry,
                           .sessions = sessions.get()};
    intake_options.desk.cache_bytes = [](const Request& request) {
      return static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
    };
    intake_options.desk.now = options.now;
    grammars = std::make_unique<GrammarCompiler>(
        GrammarCompiler::Options{.timeout = absl::Hours(1), .compile = options.compile_grammar});
    intake_options.grammars = grammars.get();
    intake_options.texts = &texts;
    intake_options.loads = &loads;
    absl::StatusOr<Tenants> parsed = Tenants::Parse(options.tenants);
    if (!parsed.ok()) ABSL_RAW_LOG(FATAL, "%s", parsed.status().ToString().c_str());
    tenants = std::make_shared<const Tenants>(*std::move(parsed));
    intake_options.text = &codec;
    intake_options.metrics = &metrics;
    intake_options.model = model;
    intake_options.limits = {.max_sequence_tokens = engine->max_sequence_tokens(), .default_max_tokens = 16};
    intake_options.limits.max_encoder_tokens = engine->max_encoder_tokens();
    if (options.has_encoder) {
      intake_options.defaults.decoder_start_token_id = 95;
      intake_options.defaults.forced_eos_token_ids = {99};
    }
    intake = std::make_unique<Intake>(std::move(intake_options));
    rpc = {.metrics = &metrics, .identities = options.identities, .audit = options.audit, .now = options.now};
    inference = std::make_unique<InferenceService>(intake.get(), rpc);
    sessions_service = std::make_unique<SessionsService>(SessionsService::Options{
        .sessions = sessions.get(), .engine = engine.get(), .intake = intake.get(), .rpc = rpc});
    ControlService::Options control_options{.engine = engine.get(), .registry = &registry};
    operations = std::make_unique<Operations>(Operations::Options{.engine = engine.get(),
                                                                  .registry = &registry,
                                                                  .admission = &admission,
                                                                  .sessions = sessions.get(),
                                                                  .grammars = grammars.get(),
                                                                  .timeout = options.operations_timeout});
    control_options.operations = operations.get();
    control_options.drain = options.drain;
    control_options.drain_grace = absl::Seconds(7);
    control_options.rpc = rpc;
    control_options.load = [this] {
      return ServerLoad{.engine = engine->GetLoad(), .texts = texts.load(), .delivery = registry.undelivered()->load()};
    };
    control_options.model = model;
    control_options.plan = cache.cache->plan();
    control_options.limits.set_max_sequence_tokens(engine->max_sequence_tokens());
    control_options.server.set_version("test");
    control_options.server.set_num_threads(2);
    control = std::make_unique<ControlService>(control_options);
    if (options.make_service) other_service = options.make_service(this);
    Serve();
  }
  ~TestServer() {
    gate.Open();
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
    server.reset();
  }

  void Serve() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(inference.get());
    builder.RegisterService(control.get());
    builder.RegisterService(sessions_service.get());
    if (other_service != nullptr) builder.RegisterService(other_service.get());
    server = builder.BuildAndStart();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // else gRPC reads megabytes ahead of a client that does not read
    channel =
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments);
    inference_stub = v1::Inference::NewStub(channel);
    control_stub = v1::Control::NewStub(channel);
    sessions_stub = v1::Sessions::NewStub(channel);
    engine->Start();
  }

  v1::GetLoadResponse Load() {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
    v1::GetLoadResponse load;
    const grpc::Status status = control_stub->GetLoad(&context, {}, &load);
    if (!status.ok()) ABSL_RAW_LOG(FATAL, "GetLoad: %s", status.error_message().c_str());
    return load;
  }

  // Built in this order, destroyed in the other one: services, engine, dispatcher.
  TinyCache cache;
  StepGate gate;
  absl::Status step_status;  // what the steps answer; set while none runs
  FakeModelRunner runner;
  FakeTextCodec codec;
  Metrics metrics{Metrics::Options{.model_name = "m"}};
  std::shared_ptr<const Tenants> tenants;
  Admission admission{Admission::Options{.tenants = [this] { return tenants; }}};
  OutputDispatcher dispatcher{OutputDispatcher::Options{}};
  RequestRegistry registry;
  std::unique_ptr<Sessions> sessions = std::make_unique<NoSessions>();
  std::unique_ptr<Engine> engine;
  std::unique_ptr<GrammarCompiler> grammars;
  TurnPool texts{TurnPool::Options{.max_waiting = 16}};
  TurnPool loads{TurnPool::Options{.threads = 1, .max_waiting = 16, .what = "sessions to resume"}};
  std::unique_ptr<Intake> intake;
  RpcOptions rpc;
  std::unique_ptr<InferenceService> inference;
  std::unique_ptr<SessionsService> sessions_service;
  std::unique_ptr<Operations> operations;
  std::unique_ptr<ControlService> control;
  std::unique_ptr<grpc::Service> other_service;
  std::unique_ptr<grpc::Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference_stub;
  std::unique_ptr<v1::Control::Stub> control_stub;
  std::unique_ptr<v1::Sessions::Stub> sessions_stub;
};

// All that a Generate call brought.
struct Answer {
  std::vector<v1::GenerateResponse> messages;
  std::string text;
  std::vector<int32_t> tokens;
  grpc::Status status;

  void Add(const v1::GenerateResponse& message) {
    messages.push_back(message);
    text += message.text();
    tokens.insert(tokens.end(), message.token_ids().begin(), message.token_ids().end());
  }
  v1::FinishReason finish_reason() const {
    return messages.empty() ? v1::FINISH_REASON_UNSPECIFIED : messages.back().finish_reason();
  }
};

// One call in progress.
class Call {
 public:
  Call(TestServer* server, const v1::GenerateRequest& request, absl::Time deadline = absl::InfiniteFuture()) {
    if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
    reader_ = server->inference_stub->Generate(&context, request);
  }
  // `prepare` changes the context before the call begins.
  Call(TestServer* server, const v1::GenerateRequest& request,
       const std::function<void(grpc::ClientContext*)>& prepare) {
    prepare(&context);
    reader_ = server->inference_stub->Generate(&context, request);
  }
  Call(
      TestServer* server, const v1::ResumeSessionRequest& request,
      const std::function<void(grpc::ClientContext*)>& prepare = [](grpc::ClientContext*) {}) {
    prepare(&context);
    reader_ = server->sessions_stub->Resume(&context, request);
  }
  // False: the stream has ended.
  bool ReadOne() {
    const HangWatch watch("a call's next message");
    v1::GenerateResponse message;
    if (!reader_->Read(&message)) return false;
    answer.Add(message);
    return true;
  }
  const Answer& ReadAll() {
    while (ReadOne()) {
    }
    answer.status = reader_->Finish();
    return answer;
  }

  grpc::ClientContext context;
  Answer answer;

 private:
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_API_TEST_SERVER_H_
