#include "server/vllm/vllm_service.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/api/call_start.h"
#include "server/api/caller.h"
#include "server/api/field_checks.h"
#include "server/api/grpc_status.h"
#include "server/vllm/messages.h"

namespace berth {
namespace {

namespace engine = ::vllm::grpc::engine;
namespace common = ::smg::grpc::common;

constexpr char kService[] = "vllm.grpc.engine.VllmEngine";
constexpr int64_t kMaxAbortIds = 1024;
constexpr size_t kChunkBytes = 64 << 10;
constexpr double kMaxFlushTimeout = 86400;  // seconds
constexpr size_t kMaxUnreadEventBytes = 8 << 20;

engine::GetModelInfoResponse MakeModelInfo(const VllmService::Options& options) {
  const ModelInfo& model = options.model;
  const int64_t longest = options.engine->max_sequence_tokens();
  engine::GetModelInfoResponse out;
  out.set_model_path(model.name);
  out.set_is_generation(true);
  out.set_max_context_length(static_cast<uint32_t>(longest));
  out.set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  out.set_served_model_name(model.name);
  out.set_tokenizer_path(model.name);
  out.set_model_type(model.model_type);
  out.mutable_architectures()->Add(model.architectures.begin(), model.architectures.end());
  out.mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  out.set_pad_token_id(options.defaults.pad_token_id.value_or(0));
  out.set_bos_token_id(options.defaults.bos_token_id.value_or(0));
  out.set_max_req_input_len(static_cast<int32_t>(longest - 1));
  out.set_default_sampling_params_json(SamplingDefaultsJson(options.defaults));
  return out;
}

engine::GetServerInfoResponse MakeServerInfo(const VllmService::Options& options) {
  engine::GetServerInfoResponse out;
  out.set_server_type("berth");
  out.set_data_parallel_size(1);
  for (const CacheGroup& group : options.plan.groups) {
    if (group.kind == CacheKind::kRecurrent || group.kind == CacheKind::kCheckpoint) continue;
    out.set_kv_cache_dtype(std::string(DTypeName(group.kv.dtype)));
    break;
  }
  out.set_block_size(static_cast<int32_t>(options.plan.block_tokens));
  out.set_model_dtype(std::string(DTypeName(options.model.dtype)));
  out.set_max_num_seqs(static_cast<int32_t>(options.max_running));
  out.set_constrained_decoding_start("first_token");
  return out;
}

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

engine::SchedulerLoad ToProto(const EngineLoad& load, int64_t max_running) {
  int64_t held = 0;
  for (const PoolOccupancy& pool : load.occupancy.pools) held += pool.bytes(pool.live_units + pool.shared_units);
  const Scheduler::Counts& counts = load.counts;
  engine::SchedulerLoad out;
  out.set_num_running_reqs(static_cast<int32_t>(counts.num_running));
  out.set_num_waiting_reqs(static_cast<int32_t>(counts.num_waiting));
  out.set_num_total_reqs(static_cast<int32_t>(counts.num_running + counts.num_waiting));
  out.set_token_usage(Share(held, load.occupancy.arena_bytes));
  out.set_cache_hit_rate(Share(counts.prefix_hit_tokens, counts.prefix_queried_tokens));
  out.set_utilization(Share(counts.num_running, max_running));
  out.set_max_running_requests(static_cast<int32_t>(max_running));
  out.set_num_waiting_uncached_tokens(static_cast<int32_t>(counts.waiting_tokens));
  return out;
}

}  // namespace

// One Generate RPC. What the output writes as one message of berth.v1 may go out as several; the output then hears of
// the last one's end. Frees itself in OnDone, which gRPC calls once, after End and the last operation.
class VllmService::GenerateCall final : public grpc::ServerWriteReactor<engine::GenerateResponse>, public OutputWriter {
 public:
  GenerateCall(VllmService* service, grpc::CallbackServerContext* context, const engine::GenerateRequest* request)
      : service_(service),
        received_(service->options_.now()),
        answers_(*request),
        start_(service->options_.inference, context, &request_, request->stream(), this) {
    absl::StatusOr<v1::GenerateRequest> translated = ToBerth(*request, service->options_.inference->validation());
    if (!translated.ok()) {
      service->options_.inference->CountRefusal(translated.status());
      End(nullptr, translated.status());
      return;
    }
    request_ = *std::move(translated);
    start_.Start();
  }

  void Write(const v1::GenerateResponse* message) override {
    Queue(*message);
    WriteNext();
  }
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    status_ = WithContractNames(status);
    ended_ = true;
    if (last != nullptr) Queue(*last);
    WriteNext();  // the call may be gone by now
  }

  void OnWriteDone(bool ok) override {
    if (!ok) waiting_.clear();
    if (ok && !waiting_.empty()) return WriteNext();
    if (ended_) return Finish(ToGrpcStatus(status_));
    start_.output()->OnWritten(ok);
  }
  void OnCancel() override { start_.OnCancel(); }
  void OnDone() override {
    service_->OnRpc("Generate", status_, received_);
    delete this;
  }

 private:
  void Queue(const v1::GenerateResponse& message) {
    for (engine::GenerateResponse& response : answers_.Translate(message)) waiting_.push_back(std::move(response));
  }
  void WriteNext() {
    if (waiting_.empty()) return Finish(ToGrpcStatus(status_));
    in_flight_ = std::move(waiting_.front());
    waiting_.pop_front();
    if (ended_ && waiting_.empty()) {
      StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), ToGrpcStatus(status_));
    } else {
      StartWrite(&in_flight_);
    }
  }

  VllmService* const service_;
  const absl::Time received_;
  v1::GenerateRequest request_;
  // One thread at a time: the output writes, gRPC says that it is written, the output writes on.
  Answers answers_;
  std::deque<engine::GenerateResponse> waiting_;
  engine::GenerateResponse in_flight_;
  bool ended_ = false;
  absl::Status status_;
  InferenceService::CallStart start_;
};

// One GetTokenizer RPC. The archive is made on a thread of the text pool, since it reads files. Frees itself in OnDone.
class VllmService::TokenizerCall final : public grpc::ServerWriteReactor<common::GetTokenizerChunk> {
 public:
  TokenizerCall(VllmService* service, grpc::CallbackServerContext* context)
      : service_(service), received_(service->options_.now()), key_(service->options_.registry->NewKey()) {
    TextPool::Job job;
    job.key = key_;
    job.client = context->peer();
    job.deadline = DeadlineOf(*context);
    job.work = [this](const absl::Status& waited, const StopCheck&) { Begin(waited); };
    absl::Status s = service->options_.texts->Submit(std::move(job));
    if (!s.ok()) End(std::move(s));
  }

  void OnWriteDone(bool ok) override { ok ? WriteNext() : End(absl::CancelledError("the client is out of reach")); }
  void OnCancel() override { service_->options_.texts->Cancel(key_); }
  void OnDone() override {
    service_->OnRpc("GetTokenizer", status_, received_);
    delete this;
  }

 private:
  void Begin(const absl::Status& waited) {
    if (!waited.ok()) return End(waited);
    absl::StatusOr<std::shared_ptr<const TokenizerArchive>> archive = service_->GetArchive();
    if (!archive.ok()) return End(archive.status());
    archive_ = *std::move(archive);
    WriteNext();
  }
  void WriteNext() {
    const std::string& bytes = archive_->bytes;
    const size_t size = std::min(kChunkBytes, bytes.size() - sent_);
    chunk_.set_data(bytes.data() + sent_, size);
    sent_ += size;
    if (sent_ < bytes.size()) return StartWrite(&chunk_);
    chunk_.set_sha256(archive_->sha256);
    StartWriteAndFinish(&chunk_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void End(absl::Status status) {
    status_ = std::move(status);
    Finish(ToGrpcStatus(status_));
  }

  VllmService* const service_;
  const absl::Time received_;
  const RequestKey key_;
  std::shared_ptr<const TokenizerArchive> archive_;
  size_t sent_ = 0;
  common::GetTokenizerChunk chunk_;
  absl::Status status_;
};

// One SubscribeKvEvents RPC, of the prefixes of the caller's tenant: those that its Generate could start from. Frees
// itself in OnDone.
class VllmService::KvEventsCall final : public grpc::ServerWriteReactor<common::KvEventBatch> {
 public:
  KvEventsCall(VllmService* service, const grpc::CallbackServerContext& context, uint64_t start)
      : service_(service),
        received_(service->options_.now()),
        subscription_(std::make_shared<KvSubscription>([this] { WriteNext(); }, kMaxUnreadEventBytes)) {
    StartSendInitialMetadata();  // the first batch may be long in coming
    service_->kv_events_.Subscribe(IdSpaceOf(IdentityOf(service_->options_.identities, context)), start, subscription_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) subscription_->End(absl::CancelledError("the client is out of reach"));
    WriteNext();
  }
  void OnCancel() override { subscription_->End(absl::CancelledError("the client has left")); }
  void OnDone() override {
    service_->OnRpc("SubscribeKvEvents", Ended().error_code(), received_);
    service_->kv_events_.Unsubscribe(std::move(subscription_));
    delete this;
  }

 private:
  void WriteNext() {
    switch (subscription_->Take(&batch_)) {
      case KvSubscription::Next::kBatch:
        return StartWrite(batch_.get());
      case KvSubscription::Next::kNothing:
        return;
      case KvSubscription::Next::kEnd:
        return Finish(Ended());
    }
  }

  // Here OUT_OF_RANGE is what the contract says, not a request that is too long.
  grpc::Status Ended() const {
    const absl::Status status = subscription_->status();
    if (absl::IsOutOfRange(status)) return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, std::string(status.message()));
    return ToGrpcStatus(status);
  }

  VllmService* const service_;
  const absl::Time received_;
  std::shared_ptr<KvSubscription> subscription_;
  KvBatch batch_;  // being written
};

VllmService::VllmService(Options options)
    : options_(std::move(options)),
      model_info_(MakeModelInfo(options_)),
      server_info_(MakeServerInfo(options_)),
      start_(options_.now()),
      kv_events_({.engine = options_.engine, .plan = options_.plan, .multiple = options_.prefix_multiple}) {}

grpc::ServerWriteReactor<engine::GenerateResponse>* VllmService::Generate(grpc::CallbackServerContext* context,
                                                                          const engine::GenerateRequest* request) {
  return new GenerateCall(this, context, request);
}

grpc::ServerUnaryReactor* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                                   const engine::HealthCheckRequest*,
                                                   engine::HealthCheckResponse* response) {
  const absl::Time start = options_.now();
  response->set_healthy(options_.ready());
  if (!response->healthy()) response->set_message("the server takes no requests: it drains, or its engine has failed");
  return Reply(context, "HealthCheck", start);
}

grpc::ServerUnaryReactor* VllmService::Abort(grpc::CallbackServerContext* context, const engine::AbortRequest* request,
                                             engine::AbortResponse*) {
  const absl::Time start = options_.now();
  const std::string id_space = IdSpaceOf(IdentityOf(options_.identities, *context));
  const absl::Status status = CheckCount("request_ids", request->request_ids_size(), kMaxAbortIds);
  if (status.ok()) {
    for (const std::string& id : request->request_ids()) options_.registry->Cancel(id_space, id, EndCause::kAborted);
  }
  return Reply(context, "Abort", start, status);
}

// What timeout_s would wait for does not matter here: a flush leaves running requests what they use.
grpc::ServerUnaryReactor* VllmService::FlushCache(grpc::CallbackServerContext* context,
                                                  const common::FlushCacheRequest* request,
                                                  common::FlushCacheResponse* response) {
  const absl::Time start = options_.now();
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto end = [=, this](const absl::StatusOr<v1::FlushCacheResponse>& result) {
    EndFlush(context, reactor, start, result, response);
  };
  absl::Status status = RequireOperator(IdentityOf(options_.identities, *context), "FlushCache");
  if (status.ok()) status = CheckRange("timeout_s", request->timeout_s(), Closed(0, kMaxFlushTimeout));
  if (status.ok()) options_.operations->FlushCache(/*tenant=*/std::nullopt, end);
  if (!status.ok()) end(status);
  return reactor;
}

void VllmService::EndFlush(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor, absl::Time start,
                           const absl::StatusOr<v1::FlushCacheResponse>& result, common::FlushCacheResponse* response) {
  if (result.ok()) {
    response->set_success(true);
    response->set_message(absl::StrCat("dropped ", result->arena_bytes(), " bytes of the arena, ",
                                       result->host_tier_bytes(), " of the host tier and ", result->disk_tier_bytes(),
                                       " of the disk tier"));
  }
  if (options_.audit != nullptr) {
    const std::string peer = context->peer();
    const Identity identity = IdentityOf(options_.identities, *context);
    options_.audit->OnOperatorCall({.peer = peer, .method = "FlushCache", .credential = identity.credential},
                                   result.status());
  }
  Finish(reactor, "FlushCache", start, result.status());
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                                    const engine::GetModelInfoRequest*,
                                                    engine::GetModelInfoResponse* response) {
  const absl::Time start = options_.now();
  *response = model_info_;
  return Reply(context, "GetModelInfo", start);
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                                     const engine::GetServerInfoRequest*,
                                                     engine::GetServerInfoResponse* response) {
  const absl::Time start = options_.now();
  const Identity identity = IdentityOf(options_.identities, *context);
  if (identity.Has(Role::kOperator) || identity.Has(Role::kGateway)) {
    *response = server_info_;
    response->set_active_requests(static_cast<uint32_t>(options_.registry->size()));
    response->set_is_paused(!options_.ready());
    response->set_uptime_seconds(absl::ToDoubleSeconds(start - start_));
  } else {
    response->set_server_type(server_info_.server_type());
    response->set_data_parallel_size(server_info_.data_parallel_size());
    response->set_constrained_decoding_start(server_info_.constrained_decoding_start());
  }
  return Reply(context, "GetServerInfo", start);
}

grpc::ServerUnaryReactor* VllmService::GetLoads(grpc::CallbackServerContext* context,
                                                const engine::GetLoadsRequest* request,
                                                engine::GetLoadsResponse* response) {
  const absl::Time start = options_.now();
  const absl::Status status = CheckRange("dp_rank", int64_t{request->dp_rank()}, Closed(0, 0));
  if (status.ok()) {
    response->set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone()));
    response->set_version(options_.version);
    response->set_dp_rank_count(1);
    *response->add_loads() = ToProto(options_.engine->GetLoad(), options_.max_running);
  }
  return Reply(context, "GetLoads", start, status);
}

grpc::ServerWriteReactor<common::KvEventBatch>* VllmService::SubscribeKvEvents(
    grpc::CallbackServerContext* context, const common::SubscribeKvEventsRequest* request) {
  return new KvEventsCall(this, *context, request->start_sequence_number());
}

grpc::ServerWriteReactor<common::GetTokenizerChunk>* VllmService::GetTokenizer(grpc::CallbackServerContext* context,
                                                                               const common::GetTokenizerRequest*) {
  return new TokenizerCall(this, context);
}

absl::StatusOr<std::shared_ptr<const TokenizerArchive>> VllmService::GetArchive() {
  MutexLock lock(&mutex_);
  if (std::shared_ptr<const TokenizerArchive> held = archive_.lock(); held != nullptr) return held;
  absl::StatusOr<TokenizerArchive> made = MakeTokenizerArchive(options_.model_dir);
  if (!made.ok()) return made.status();
  auto archive = std::make_shared<const TokenizerArchive>(*std::move(made));
  archive_ = archive;
  return archive;
}

grpc::ServerUnaryReactor* VllmService::Reply(grpc::CallbackServerContext* context, const char* method, absl::Time start,
                                             const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Finish(reactor, method, start, status);
  return reactor;
}

void VllmService::Finish(grpc::ServerUnaryReactor* reactor, const char* method, absl::Time start,
                         const absl::Status& status) {
  OnRpc(method, status, start);
  reactor->Finish(ToGrpcStatus(status));
}

void VllmService::OnRpc(const char* method, const absl::Status& status, absl::Time start) {
  OnRpc(method, ToGrpcStatus(status).error_code(), start);
}

void VllmService::OnRpc(const char* method, grpc::StatusCode code, absl::Time start) {
  if (options_.metrics != nullptr) options_.metrics->OnRpc(kService, method, code, options_.now() - start);
}

}  // namespace berth
