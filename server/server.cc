#include "server/server.h"

#include <grpc/support/log.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "server/api/parse_errors.h"
#include "server/capacity.h"
#include "server/process/line_limit.h"
#include "server/storage/prefix_file.h"
#include "server/storage/session_store.h"
#include "server/version.h"

namespace berth {
namespace {

constexpr const char* kLiveNames[] = {"", "liveness"};
constexpr const char* kReadyNames[] = {"readiness", "berth.v1.Inference", "berth.v1.Control", "berth.v1.Sessions",
                                       "vllm.grpc.engine.VllmEngine"};

constexpr const char* kServices[] = {"berth.v1.Inference", "berth.v1.Control", "berth.v1.Sessions",
                                     "vllm.grpc.engine.VllmEngine", "grpc.health.v1.Health"};
constexpr const char* kReflectionServices[] = {"grpc.reflection.v1.ServerReflection",
                                               "grpc.reflection.v1alpha.ServerReflection"};

// A prompt of 4 MiB text and a structure of 1 MiB, or a million token ids, fit with room; what is larger is refused
// before it is parsed.
constexpr int kMaxRequestBytes = 8 << 20;
// An answer of 16 outputs with logprobs.
constexpr int kMaxAnswerBytes = 16 << 20;
// For messages that are received in part, of all connections. Over it gRPC ends calls, whichever come first.
constexpr size_t kMaxReceivedBytes = size_t{512} << 20;
// For the last statuses to reach their clients once the engine is idle.
constexpr absl::Duration kFlushTime = absl::Seconds(2);
// Threads that compute masks beside the steps. Each mask is work for one.
constexpr int64_t kMaxMaskThreads = 8;
// Threads that tokenise and render chats.
constexpr int64_t kMaxTextThreads = 8;

// gRPC logs each handshake that fails as an error, and clients can have as many of those as they like. Such a line is
// one of OpenSSL's, so there are few of them. Others may quote the client: they count by their place in gRPC's code.
void LogGrpc(gpr_log_func_args* args) {
  static auto* const limit = new LineLimit();  // gRPC calls a plain function, until the process ends
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return spdlog::debug("grpc: {}", args->message);
  const bool handshake = absl::StartsWith(args->message, "Handshake failed with fatal error");
  const std::optional<std::string> end =
      limit->Admit(handshake ? args->message : absl::StrCat(args->file, ":", args->line));
  if (end.has_value()) spdlog::warn("grpc: {}{}", args->message, *end);
}

// How long a client may take to answer a ping.
absl::Duration PingTimeout(const Config& config) {
  return std::max(absl::Milliseconds(1), config.ping_interval * 2 / 3);
}

// Pings find a client that vanished without a word, so that it gives its cache back. Only connections with calls under
// way are pinged: a Python client that rests does not answer, and would lose its connection. An idle connection of a
// client that vanished stays until its age ends it. Clients may ping as they like: gRPC would count each ping of an
// idle connection as abuse when its own pings are off there, hence no strikes.
void SetPings(const Config& config, grpc::ServerBuilder* builder) {
  const int interval = static_cast<int>(absl::ToInt64Milliseconds(config.ping_interval));
  const int timeout = static_cast<int>(absl::ToInt64Milliseconds(PingTimeout(config)));
  const int age = static_cast<int>(absl::ToInt64Milliseconds(config.connection_age));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, interval);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, age);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, age);
}

void SetArguments(const Config& config, grpc::ServerBuilder* builder) {
  const int64_t streams = std::max<int64_t>(1024, 2 * (config.engine.scheduler.max_running + config.engine.max_queue));
  builder->SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder->SetMaxSendMessageSize(kMaxAnswerBytes);
  builder->SetResourceQuota(grpc::ResourceQuota("berth").Resize(kMaxReceivedBytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(streams));
  SetPings(config, builder);
}

TenantWeights WeightsOf(const Tenants& tenants) {
  TenantWeights weights = {.others = WeightOf(tenants.others())};
  for (const auto& [name, tenant] : tenants.entries()) weights.by_tenant[name] = WeightOf(tenant);
  return weights;
}

SessionQuota SessionQuotaOf(const v1::Tenant& tenant) {
  SessionQuota quota;
  if (tenant.has_session_bytes()) quota.bytes = tenant.session_bytes();
  if (tenant.has_session_age_seconds()) quota.age = absl::Seconds(tenant.session_age_seconds());
  return quota;
}

PrefixQuota PrefixQuotaOf(const v1::Tenant& tenant) {
  PrefixQuota quota;
  if (tenant.has_disk_tier_bytes()) quota.bytes = tenant.disk_tier_bytes();
  if (tenant.has_disk_tier_age_seconds()) quota.age = absl::Seconds(tenant.disk_tier_age_seconds());
  return quota;
}

Metrics::Options MetricsOptions(const Config& config, const std::string& model_name) {
  Metrics::Options options = config.metrics;
  options.model_name = model_name;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config, Parts parts) {
  auto server = absl::WrapUnique(new Server(config, std::move(parts)));
  if (absl::Status s = server->OpenFiles(); !s.ok()) return s;
  if (absl::Status s = server->StartEngine(); !s.ok()) return s;
  server->StartGrammarCompiler();
  server->StartPools();
  server->MakeIntake();
  server->MakeServices();
  server->MakeVllmService();
  if (absl::Status s = server->Listen(); !s.ok()) return s;
  if (absl::Status s = server->StartExporter(); !s.ok()) return s;
  server->SetReady(true);
  return server;
}

Server::Server(const Config& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      audit_({.logger = nullptr,
              .refusals = {},
              .on_unauthenticated = [this] { metrics_.OnRejected(RefusalReason::kUnauthenticated); }}),
      metrics_(MetricsOptions(config_, parts_.runner->info().name)),
      dispatcher_(OutputDispatcher::Options{.on_step = [this](const StepStats& stats) { metrics_.OnStep(stats); }}) {}

Server::~Server() {
  exporter_.reset();
  if (grpc_ != nullptr) Drain(absl::ZeroDuration());
  // What they still do calls the intake.
  loads_.reset();
  texts_.reset();
  grammars_.reset();
}

absl::Status Server::OpenFiles() {
  absl::StatusOr<AccessFiles> files = OpenAccessFiles(config_);
  if (!files.ok()) return files.status();
  files_ = *std::move(files);
  authenticator_ = std::make_unique<Authenticator>(
      Authenticator::Options{.file = tenants(), .gateway_tenant = config_.gateway_tenant});
  admission_ = std::make_unique<Admission>(Admission::Options{.tenants = [this] { return tenants()->current(); }});
  if (!config_.sessions.folder.empty()) {
    SessionStore::Options options = config_.sessions;
    options.model = parts_.model_fingerprint;
    options.quota = [this](const std::string& tenant) { return SessionQuotaOf(tenants()->current()->Of(tenant)); };
    options.on_save = [this](const SaveEvent& save) { dispatcher_.DeliverSave(save); };
    absl::StatusOr<std::unique_ptr<SessionStore>> sessions = SessionStore::Open(std::move(options));
    if (!sessions.ok()) return sessions.status();
    sessions_ = *std::move(sessions);
  }
  if (!config_.disk_tier.folder.empty()) {
    const Scheduler::Options& scheduler = config_.engine.scheduler;
    const int64_t chunk = scheduler.aligned_prefill_chunks ? scheduler.prefill_chunk_tokens : 0;
    DiskTier::Options options = config_.disk_tier;
    options.identity = CacheIdentity(parts_.model_fingerprint, parts_.plan, chunk);
    options.plan = parts_.plan;
    absl::StatusOr<std::unique_ptr<DiskTier>> disk = DiskTier::Open(std::move(options));
    if (!disk.ok()) return disk.status();
    disk_tier_ = *std::move(disk);
  }
  return absl::OkStatus();
}

absl::Status Server::StartEngine() {
  absl::StatusOr<std::unique_ptr<Cache>> cache = Cache::Create(parts_.plan, parts_.storage, config_.cache);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  const ModelInfo& model = parts_.runner->info();
  Engine::Options options = config_.engine;
  options.scheduler.max_sequence_tokens = parts_.max_sequence_tokens;
  options.scheduler.rope_switch_length = model.rope_switch_length;
  options.scheduler.max_shareable_tokens = model.max_shareable_tokens;
  options.scheduler.prefixes.disk = disk_tier_.get();
  if (!config_.tenants.empty()) {
    options.scheduler.prefixes.quota = [this](const std::string& tenant) {
      return PrefixQuotaOf(tenants()->current()->Of(tenant));
    };
  }
  options.scheduler.save_sink = sessions_.get();
  if (config_.fair_scheduling) {
    fair_policy_ = std::make_unique<FairPolicy>(FairPolicy::Options());
    tenants()->Follow([this](const Tenants& tenants) { fair_policy_->SetWeights(WeightsOf(tenants)); });
  }
  options.scheduler.policy = fair_policy_.get();
  options.scheduler.mask_threads = std::min<int64_t>(AvailableCpus(), kMaxMaskThreads);
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(cache_.get(), parts_.runner, &dispatcher_, std::move(options));
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  watchdog_ = std::make_unique<Watchdog>(config_.watchdog, engine_->progress());
  if (absl::Status s = engine_->Start(parts_.warm_up); !s.ok()) return s;
  watchdog_->Start();
  return absl::OkStatus();
}

RequestLimits Server::Limits() const {
  RequestLimits limits = config_.limits;
  limits.max_sequence_tokens = engine_->max_sequence_tokens();
  limits.max_encoder_tokens = engine_->max_encoder_tokens();
  limits.max_outputs = std::min(limits.max_outputs, config_.engine.scheduler.max_running);
  return limits;
}

v1::Limits Server::LimitsProto() const {
  const RequestLimits limits = Limits();
  const Scheduler::Options& scheduler = config_.engine.scheduler;
  v1::Limits proto;
  proto.set_max_sequence_tokens(limits.max_sequence_tokens);
  proto.set_max_encoder_tokens(limits.max_encoder_tokens);
  proto.set_max_running(scheduler.max_running);
  proto.set_max_queue(config_.engine.max_queue);
  proto.set_max_step_tokens(scheduler.max_step_tokens);
  proto.set_prefill_chunk_tokens(scheduler.prefill_chunk_tokens);
  proto.set_max_logprobs(limits.max_logprobs);
  proto.set_default_max_tokens(limits.default_max_tokens);
  proto.set_max_outputs(limits.max_outputs);
  return proto;
}

int64_t Server::CacheBytes(const Request& request) const {
  const SequenceShape shape = {.num_tokens = static_cast<int64_t>(request.prompt.size()) + request.max_tokens,
                               .step_tokens = config_.engine.scheduler.prefill_chunk_tokens,
                               .num_encoder_tokens = static_cast<int64_t>(request.encoder_tokens.size())};
  return ArenaBytesFor(parts_.plan, request.num_sequences(), shape);
}

void Server::StartGrammarCompiler() {
  GrammarCompiler::Options options = config_.grammars;
  options.max_waiting = 2 * config_.engine.max_queue;  // of one client at most half
  options.compile = parts_.compile_grammar;
  grammars_ = std::make_unique<GrammarCompiler>(std::move(options));
}

void Server::StartPools() {
  TurnPool::Options options;
  // Two at least: one text that takes long leaves a thread to other clients.
  options.threads = std::clamp<int64_t>(AvailableCpus() / 4, 2, kMaxTextThreads);
  // A short queue of the engine must not refuse texts, which take a moment only.
  options.max_waiting = std::max(options.max_waiting, config_.engine.max_queue);
  texts_ = std::make_unique<TurnPool>(std::move(options));
  // One thread: the disk gets one session at a time to read.
  loads_ = std::make_unique<TurnPool>(TurnPool::Options{.threads = 1,
                                                        .max_waiting = 2 * config_.engine.max_queue,
                                                        .what = "sessions to resume",
                                                        .refusal = RefusalReason::kQueueFull});
}

void Server::MakeIntake() {
  Intake::Options options;
  options.desk.engine = engine_.get();
  options.desk.admission = admission_.get();
  options.desk.dispatcher = &dispatcher_;
  options.desk.registry = &registry_;
  options.desk.sessions = sessions_.get();
  options.desk.cache_bytes = [this](const Request& request) { return CacheBytes(request); };
  options.texts = texts_.get();
  options.loads = loads_.get();
  options.metrics = &metrics_;
  options.grammars = grammars_.get();
  options.text = parts_.text;
  options.model = parts_.runner->info();
  options.limits = Limits();
  options.defaults = parts_.defaults;
  const Scheduler::Options& scheduler = config_.engine.scheduler;
  options.finds_message_ends = parts_.plan.state_group() >= 0 && scheduler.share_prefixes &&
                               !scheduler.aligned_prefill_chunks &&
                               scheduler.state_checkpoint_tokens == Scheduler::Options::kAutoCheckpoints;
  intake_ = std::make_unique<Intake>(std::move(options));
}

void Server::MakeServices() {
  inference_ = std::make_unique<InferenceService>(intake_.get(), RpcOptionsOf());

  SessionsService::Options sessions;
  sessions.sessions = sessions_.get();
  sessions.engine = engine_.get();
  sessions.intake = intake_.get();
  sessions.rpc = RpcOptionsOf();
  sessions_service_ = std::make_unique<SessionsService>(std::move(sessions));

  operations_ = std::make_unique<Operations>(Operations::Options{.engine = engine_.get(),
                                                                 .registry = &registry_,
                                                                 .admission = admission_.get(),
                                                                 .sessions = sessions_.get(),
                                                                 .grammars = grammars_.get()});
  ControlService::Options control;
  control.engine = engine_.get();
  control.registry = &registry_;
  control.operations = operations_.get();
  control.drain = [this] { BeginDrain(); };
  control.drain_grace = config_.drain_grace;
  control.rpc = RpcOptionsOf();
  control.load = [this] { return Load(); };
  control.model = parts_.runner->info();
  control.plan = parts_.plan;
  control.has_chat_template = parts_.text->has_chat_template();
  control.limits = LimitsProto();
  control.server.set_version(kVersion);
  control.server.set_libtorch_version(parts_.libtorch_version);
  control.server.set_cpu_capability(parts_.cpu_capability);
  control.server.set_num_threads(config_.model.num_threads > 0 ? config_.model.num_threads : AvailableCpus());
  for (const std::string& service : MakeReflection()) control.server.add_services(service);
  control_ = std::make_unique<ControlService>(std::move(control));
}

void Server::MakeVllmService() {
  VllmService::Options options;
  options.intake = intake_.get();
  options.engine = engine_.get();
  options.operations = operations_.get();
  options.rpc = RpcOptionsOf();
  options.ready = [this] { return ready_.load(std::memory_order_relaxed); };
  options.model = parts_.runner->info();
  options.plan = parts_.plan;
  options.defaults = parts_.defaults;
  options.model_dir = config_.model.model_dir;
  options.version = kVersion;
  options.max_running = config_.engine.scheduler.max_running;
  const Scheduler::Options& scheduler = config_.engine.scheduler;
  options.prefix_multiple = scheduler.aligned_prefill_chunks ? scheduler.prefill_chunk_tokens : 1;
  vllm_ = std::make_unique<VllmService>(std::move(options));
}

std::vector<std::string> Server::MakeReflection() {
  std::vector<std::string> services(std::begin(kServices), std::end(kServices));
  const bool on = config_.reflection == "on" || (config_.reflection == "auto" && !authenticator_->on());
  if (!on) return services;
  for (const char* name : kReflectionServices) services.push_back(name);
  described_ = std::make_unique<DescribedServices>(services);
  reflection_ = std::make_unique<ReflectionService<ReflectionV1>>(described_.get());
  reflection_alpha_ = std::make_unique<ReflectionService<ReflectionV1Alpha>>(described_.get());
  return services;
}

absl::Status Server::Listen() {
  gpr_set_log_function(LogGrpc);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetArguments(config_, &builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<ParseErrors>(/*reflection=*/described_ != nullptr));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  listeners_ = std::make_unique<Listeners>();
  const absl::Status bound = listeners_->Bind(
      config_,
      {.authenticator = authenticator_.get(), .audit = &audit_, .files = &files_, .user_timeout = PingTimeout(config_)},
      &builder);
  if (!bound.ok()) return bound;
  builder.RegisterService(inference_.get());
  builder.RegisterService(control_.get());
  builder.RegisterService(sessions_service_.get());
  builder.RegisterService(vllm_.get());
  if (described_ != nullptr) {
    builder.RegisterService(reflection_.get());
    builder.RegisterService(reflection_alpha_.get());
  }
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::InternalError("gRPC does not start");
  for (const char* name : kLiveNames) grpc_->GetHealthCheckService()->SetServingStatus(name, true);
  listeners_->Start();
  return absl::OkStatus();
}

ServerLoad Server::Load() const {
  return {.engine = engine_->GetLoad(),
          .sessions = sessions_->stats(),
          .grammars = grammars_->load(),
          .texts = texts_->load(),
          .delivery = registry_.undelivered()->load(),
          .connections = listeners_->load(),
          .tenants = fair_policy_ ? fair_policy_->shares() : TenantShares()};
}

absl::Status Server::StartExporter() {
  if (!config_.metrics_listen) return absl::OkStatus();
  MetricsCollector::Options options = {.metrics = &metrics_,
                                       .load = [this] { return Load(); },
                                       .plan = parts_.plan,
                                       .model = parts_.runner->info(),
                                       .version = kVersion,
                                       .libtorch_version = parts_.libtorch_version,
                                       .cpu_capability = parts_.cpu_capability};
  Exporter::Admit admit = nullptr;
  if (!config_.metrics_listen->IsLocal()) {
    admit = [this](std::optional<absl::string_view> header) { return authenticator_->AdmitScrape(header); };
  }
  absl::StatusOr<std::unique_ptr<Exporter>> exporter =
      Exporter::Start(*config_.metrics_listen, std::move(options), std::move(admit));
  if (!exporter.ok()) {
    return absl::Status(exporter.status().code(), absl::StrCat("--metrics_listen: ", exporter.status().message()));
  }
  exporter_ = *std::move(exporter);
  return absl::OkStatus();
}

void Server::SetReady(bool ready) {
  ready_.store(ready, std::memory_order_relaxed);
  for (const char* name : kReadyNames) grpc_->GetHealthCheckService()->SetServingStatus(name, ready);
  metrics_.OnReady(ready);
}

void Server::UpdateHealth() {
  sessions_->Tick();
  const bool healthy = engine_->healthy();
  const bool alive = healthy && !watchdog_->hanging();
  if (alive == alive_) return;
  alive_ = alive;
  metrics_.OnLive(alive);
  if (!healthy) spdlog::error("the engine has failed and refuses every request; restart the server");
  for (const char* name : kLiveNames) grpc_->GetHealthCheckService()->SetServingStatus(name, alive);
  SetReady(alive && !draining_);
}

void Server::ReloadChangedFiles() {
  tenants()->ReloadIfChanged();
  if (files_.certificates != nullptr) files_.certificates->ReloadIfChanged();
  if (told_of_access_ || !authenticator_->on()) return;
  const absl::Status status = CheckAccess(config_, tenants()->current()->credentials());
  if (status.ok()) return;
  told_of_access_ = true;
  spdlog::error("{}; callers are refused until a restart", std::string(status.message()));
}

void Server::BeginDrain() {
  draining_.store(true);
  SetReady(false);
  control_->SetDraining();
  engine_->Drain();
}

bool Server::WaitInParts(absl::Time end, const std::function<bool(absl::Time)>& wait) {
  constexpr absl::Duration kPart = absl::Milliseconds(200);
  while (true) {
    const absl::Time until = std::min(end, SteadyNow() + kPart);
    if (wait(until)) return true;
    if (until == end) return false;
    UpdateHealth();
    ReloadChangedFiles();
  }
}

void Server::Drain(absl::Duration grace) {
  if (std::exchange(stopped_, true)) return;
  UpdateHealth();
  BeginDrain();
  const absl::Time end = SteadyNow() + grace;
  const bool idle = WaitInParts(end, [this](absl::Time until) { return engine_->WaitUntilIdle(until - SteadyNow()); });
  if (!idle) {
    spdlog::warn("draining: {} requests did not finish within {}; ending them", registry_.size(),
                 absl::FormatDuration(grace));
  }
  intake_->EndAll();  // of an idle engine too: it does not know the requests that wait for their grammars
  // The step under way must end first.
  if (!idle) engine_->WaitUntilIdle(absl::Seconds(30));
  // Their clients may read slowly.
  WaitInParts(end, [this](absl::Time until) { return intake_->WaitForCalls(until); });
  vllm_->EndStreams();
  listeners_->Stop();
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kFlushTime));
  grpc_->Wait();
}

}  // namespace berth
