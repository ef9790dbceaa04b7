#include "server/server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/storage/prefix_file.h"
#include "server/units.h"
#include "server/version.h"

namespace berth {
namespace {

constexpr const char* kLiveNames[] = {"", "liveness"};
constexpr const char* kReadyNames[] = {"readiness", "berth.v1.Inference", "berth.v1.Control", "berth.v1.Sessions"};

// A prompt of 4 MiB text or a million token ids fits with room; what is larger is refused before it is parsed.
constexpr int kMaxMessageBytes = 16 << 20;
// Clients may ping this often without a call under way; more is abuse.
constexpr int kMinPingIntervalMs = 10'000;
// The server's own pings: how soon a client that vanished without a word gives its cache back.
constexpr int kPingMs = 30'000;
constexpr int kPingTimeoutMs = 20'000;
// Connections are renewed so that balancers see new replicas; requests on an old one have as long again to end.
constexpr int kConnectionAgeMs = 3'600'000;
// For the last statuses to reach their clients once the engine is idle.
constexpr absl::Duration kFlushTime = absl::Seconds(2);

// gRPC words every failed start at length; ours says it in a line.
void LogGrpcQuietly(gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); }
void LogGrpc(gpr_log_func_args* args) {
  spdlog::log(args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug, "grpc: {}",
              args->message);
}

// SO_REUSEPORT off: a second server on the port is an error, not a lottery for each connection.
void SetArguments(const Config& config, grpc::ServerBuilder* builder) {
  const int64_t streams = std::max<int64_t>(1024, 2 * (config.max_running + config.max_queue));
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(streams));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionAgeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kConnectionAgeMs);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config, Parts parts) {
  auto server = absl::WrapUnique(new Server(config, std::move(parts)));
  if (absl::Status s = server->StartEngine(); !s.ok()) return s;
  server->MakeServices();
  if (absl::Status s = server->Listen(); !s.ok()) return s;
  if (absl::Status s = server->StartExporter(); !s.ok()) return s;
  server->SetReady(true);
  return server;
}

Server::Server(const Config& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      metrics_({.model_name = parts_.runner->info().name, .vllm_aliases = config.metrics_compat == "vllm"}),
      dispatcher_(OutputDispatcher::Options{.metrics = &metrics_}) {}

Server::~Server() {
  exporter_.reset();
  if (grpc_ != nullptr) Drain(absl::ZeroDuration());
}

absl::Status Server::StartEngine() {
  if (!config_.session_dir.empty()) {
    absl::StatusOr<std::unique_ptr<SessionStore>> sessions = SessionStore::Open(
        {.folder = config_.session_dir, .limit_bytes = config_.session_dir_limit, .model = parts_.model_fingerprint});
    if (!sessions.ok()) return sessions.status();
    sessions_ = *std::move(sessions);
  }
  if (!config_.disk_tier.empty()) {
    const std::string identity = CacheIdentity(parts_.model_fingerprint, parts_.plan,
                                               config_.aligned_prefill_chunks ? config_.prefill_chunk_tokens : 0);
    absl::StatusOr<std::unique_ptr<DiskTier>> disk =
        DiskTier::Open({.folder = config_.disk_tier, .identity = identity, .plan = parts_.plan});
    if (!disk.ok()) return disk.status();
    disk_tier_ = *std::move(disk);
  }
  absl::StatusOr<std::unique_ptr<Cache>> cache =
      Cache::Create(parts_.plan, parts_.storage, {.poison_returned_units = config_.poison_cache});
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  Engine::Options options;
  options.scheduler = {
      .max_running = config_.max_running,
      .max_step_tokens = config_.max_step_tokens,
      .prefill_chunk_tokens = config_.prefill_chunk_tokens,
      .max_sequence_tokens = parts_.max_sequence_tokens,
      .recompute_length = parts_.runner->info().recompute_length,
      .share_prefixes = config_.share_prefixes,
      .share_length = parts_.runner->info().share_length,
      .state_checkpoint_tokens = config_.state_checkpoint_tokens,
      .aligned_prefill_chunks = config_.aligned_prefill_chunks,
      .compact_bytes_per_step = config_.compact_bytes_per_step,
      .crop_every = config_.crop_every,
      .suspend = {.host_tier_bytes = config_.host_tier_bytes,
                  .copy_bytes_per_step = config_.copy_bytes_per_step,
                  .beside_steps = true},
      .prefixes = {.disk = disk_tier_.get(), .disk_limit_bytes = config_.disk_tier_bytes, .idle = config_.tier_idle},
      .save_sink = sessions_.get()};
  options.max_queue = config_.max_queue;
  options.check_integrity = config_.check_integrity;
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(cache_.get(), parts_.runner, &dispatcher_, std::move(options));
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  engine_->Start();
  return absl::OkStatus();
}

v1::Limits Server::Limits() const {
  v1::Limits limits;
  limits.set_max_sequence_tokens(engine_->max_sequence_tokens());
  limits.set_max_encoder_tokens(engine_->max_encoder_tokens());
  limits.set_max_running(config_.max_running);
  limits.set_max_queue(config_.max_queue);
  limits.set_max_step_tokens(config_.max_step_tokens);
  limits.set_prefill_chunk_tokens(config_.prefill_chunk_tokens);
  limits.set_max_logprobs(config_.max_logprobs);
  limits.set_default_max_tokens(config_.default_max_tokens);
  limits.set_max_outputs(std::min(config_.max_outputs, config_.max_running));
  return limits;
}

void Server::MakeServices() {
  const ModelInfo& model = parts_.runner->info();
  InferenceService::Options inference;
  inference.engine = engine_.get();
  inference.dispatcher = &dispatcher_;
  inference.registry = &registry_;
  inference.text = parts_.text;
  inference.metrics = &metrics_;
  inference.sessions = sessions_.get();
  inference.model = model;
  inference.limits.max_sequence_tokens = engine_->max_sequence_tokens();
  inference.limits.max_encoder_tokens = engine_->max_encoder_tokens();
  inference.limits.default_max_tokens = config_.default_max_tokens;
  inference.limits.default_draft_tokens = config_.draft_tokens;
  inference.limits.max_logprobs = config_.max_logprobs;
  inference.limits.max_outputs = std::min(config_.max_outputs, config_.max_running);
  inference.defaults = parts_.defaults;
  inference_ = std::make_unique<InferenceService>(std::move(inference));

  SessionsService::Options sessions;
  sessions.store = sessions_.get();
  sessions.engine = engine_.get();
  sessions.inference = inference_.get();
  sessions.metrics = &metrics_;
  sessions_service_ = std::make_unique<SessionsService>(std::move(sessions));

  ControlService::Options control;
  control.engine = engine_.get();
  control.registry = &registry_;
  control.metrics = &metrics_;
  control.model = model;
  control.plan = parts_.plan;
  control.has_chat_template = parts_.text != nullptr && parts_.text->has_chat_template();
  control.limits = Limits();
  control.server.set_version(kVersion);
  control.server.set_libtorch_version(parts_.libtorch_version);
  control.server.set_cpu_capability(parts_.cpu_capability);
  const int64_t threads = config_.num_threads > 0 ? config_.num_threads : std::thread::hardware_concurrency();
  control.server.set_num_threads(static_cast<int32_t>(threads));
  for (const char* service : {"berth.v1.Inference", "berth.v1.Control", "berth.v1.Sessions", "grpc.health.v1.Health",
                              "grpc.reflection.v1alpha.ServerReflection"}) {
    control.server.add_services(service);
  }
  control_ = std::make_unique<ControlService>(std::move(control));
}

absl::Status Server::Listen() {
  const absl::StatusOr<Address> address = ParseAddress(config_.listen);
  if (!address.ok()) return address.status();
  gpr_set_log_function(LogGrpcQuietly);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetArguments(config_, &builder);
  builder.AddListeningPort(address->ToString(), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(inference_.get());
  builder.RegisterService(control_.get());
  builder.RegisterService(sessions_service_.get());
  grpc_ = builder.BuildAndStart();
  gpr_set_log_function(LogGrpc);
  if (grpc_ == nullptr || port_ == 0) {
    return absl::UnavailableError(absl::StrCat("--listen: cannot listen on ", config_.listen,
                                               ": the port is taken, or the address is not this machine's"));
  }
  for (const char* name : kLiveNames) grpc_->GetHealthCheckService()->SetServingStatus(name, true);
  return absl::OkStatus();
}

absl::Status Server::StartExporter() {
  if (config_.metrics_listen.empty()) return absl::OkStatus();
  const absl::StatusOr<Address> address = ParseAddress(config_.metrics_listen);
  if (!address.ok()) return address.status();
  absl::StatusOr<std::unique_ptr<Exporter>> exporter =
      Exporter::Start(*address, {.metrics = &metrics_,
                                 .load = [engine = engine_.get()] { return engine->GetLoad(); },
                                 .sessions = [this] { return sessions_ ? sessions_->stats() : SessionLoad(); },
                                 .plan = parts_.plan,
                                 .model = parts_.runner->info(),
                                 .version = kVersion,
                                 .libtorch_version = parts_.libtorch_version,
                                 .cpu_capability = parts_.cpu_capability});
  if (!exporter.ok()) {
    return absl::Status(exporter.status().code(), absl::StrCat("--metrics_listen: ", exporter.status().message()));
  }
  exporter_ = *std::move(exporter);
  return absl::OkStatus();
}

void Server::SetReady(bool ready) {
  for (const char* name : kReadyNames) grpc_->GetHealthCheckService()->SetServingStatus(name, ready);
}

void Server::UpdateHealth() {
  if (!alive_ || engine_->healthy()) return;
  alive_ = false;
  spdlog::error("the engine is dead: every request is refused; restart the server");
  for (const char* name : kLiveNames) grpc_->GetHealthCheckService()->SetServingStatus(name, false);
  SetReady(false);
}

void Server::Drain(absl::Duration grace) {
  if (std::exchange(draining_, true)) return;
  UpdateHealth();
  SetReady(false);
  control_->SetDraining();
  engine_->Drain();
  if (!engine_->WaitUntilIdle(grace)) {
    spdlog::warn("drain: {} requests are not done after {}; ending them", registry_.size(),
                 absl::FormatDuration(grace));
    inference_->EndAll();
    // The step under way must end first.
    engine_->WaitUntilIdle(absl::Seconds(30));
  }
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kFlushTime));
  grpc_->Wait();
}

}  // namespace berth
