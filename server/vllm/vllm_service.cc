#include "server/vllm/vllm_service.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/request/field_checks.h"
#include "server/request/message.h"
#include "server/request/tenant_rules.h"
#include "server/vllm/messages.h"

namespace berth {
namespace {

namespace engine = ::vllm::grpc::engine;
namespace common = ::smg::grpc::common;

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

common::FlushCacheResponse Flushed(const v1::FlushCacheResponse& dropped) {
  common::FlushCacheResponse out;
  out.set_success(true);
  out.set_message(absl::StrCat("dropped ", dropped.arena_bytes(), " bytes of the arena, ", dropped.host_tier_bytes(),
                               " of the host tier and ", dropped.disk_tier_bytes(), " of the disk tier"));
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
  GenerateCall(Intake* intake, const engine::GenerateRequest* request, const Rpc& rpc)
      : unread_(intake->registry()->unread()), rpc_(rpc), stream_(request->stream()), answers_(*request) {
    absl::StatusOr<v1::GenerateRequest> translated = ToBerth(*request, intake->validation());
    if (!translated.ok()) {
      intake->CountRefusal(translated.status());
      End(nullptr, translated.status());
      return;
    }
    request_ = *std::move(translated);
    FreeMessage(request);
    handle_ = intake->Start(&request_, rpc_.info(), stream_, this);
  }

  void Write(const v1::GenerateResponse* message) override {
    Queue(*message);
    WriteNext();
  }
  void SetUnread(int64_t bytes) override {
    unread_->Add(this, bytes, [context = rpc_.context()] { context->TryCancel(); });
  }
  void End(v1::GenerateResponse* last, const absl::Status& status) override {
    status_ = rpc_.End(WithContractNames(status));
    ended_ = true;
    // Without streaming, a request that failed has no answer.
    if (last != nullptr && (stream_ || status.ok())) Queue(*last);
    WriteNext();  // the call may be gone by now
  }

  void OnWriteDone(bool ok) override {
    if (!ok) waiting_.clear();
    if (ok && !waiting_.empty()) return WriteNext();
    if (ended_) return Finish(status_);
    handle_->OnWritten(ok);
  }
  void OnCancel() override {
    if (handle_ != nullptr) handle_->Cancel();  // null: the request was refused
  }
  void OnDone() override {
    unread_->Remove(this);
    rpc_.OnDone();
    delete this;
  }

 private:
  void Queue(const v1::GenerateResponse& message) {
    for (engine::GenerateResponse& response : answers_.Translate(message)) waiting_.push_back(std::move(response));
  }
  void WriteNext() {
    if (waiting_.empty()) return Finish(status_);
    in_flight_ = std::move(waiting_.front());
    waiting_.pop_front();
    if (ended_ && waiting_.empty()) {
      StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), status_);
    } else {
      StartWrite(&in_flight_);
    }
  }

  UnreadAnswers* const unread_;
  Rpc rpc_;
  const bool stream_;
  v1::GenerateRequest request_;
  // One thread at a time: the output writes, gRPC says that it is written, the output writes on.
  Answers answers_;
  std::deque<engine::GenerateResponse> waiting_;
  engine::GenerateResponse in_flight_;
  bool ended_ = false;
  grpc::Status status_;
  std::shared_ptr<Intake::Handle> handle_;
};

// One GetTokenizer RPC. The archive is made on a thread of the text pool, since it reads files. Frees itself in OnDone.
class VllmService::TokenizerCall final : public grpc::ServerWriteReactor<common::GetTokenizerChunk> {
 public:
  TokenizerCall(VllmService* service, const Rpc& rpc)
      : service_(service), rpc_(rpc), key_(service->options_.intake->registry()->NewKey()) {
    const absl::Status s =
        service->options_.intake->SubmitText(key_, rpc_.info(), /*named_tenant=*/"", /*bytes=*/0,
                                             [this](const absl::Status& waited, const StopCheck&) { Begin(waited); });
    if (!s.ok()) End(s);
  }

  void OnWriteDone(bool ok) override { ok ? WriteNext() : End(absl::CancelledError("the client is out of reach")); }
  void OnCancel() override { service_->options_.intake->texts()->Cancel(key_); }
  void OnDone() override {
    rpc_.OnDone();
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
    StartWriteAndFinish(&chunk_, grpc::WriteOptions(), rpc_.End(absl::OkStatus()));
  }
  void End(const absl::Status& status) { Finish(rpc_.End(status)); }

  VllmService* const service_;
  Rpc rpc_;
  const RequestKey key_;
  std::shared_ptr<const TokenizerArchive> archive_;
  size_t sent_ = 0;
  common::GetTokenizerChunk chunk_;
};

// One SubscribeKvEvents RPC, of the prefixes of the caller's tenant: those that its Generate could start from. Frees
// itself in OnDone.
class VllmService::KvEventsCall final : public grpc::ServerWriteReactor<common::KvEventBatch> {
 public:
  KvEventsCall(VllmService* service, const Rpc& rpc, uint64_t start)
      : service_(service),
        rpc_(rpc),
        subscription_(std::make_shared<KvSubscription>([this] { WriteNext(); }, kMaxUnreadEventBytes)) {
    StartSendInitialMetadata();  // the first batch may be long in coming
    service_->kv_events_.Subscribe(IdSpaceOf(rpc_.identity()), start, subscription_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) subscription_->End(absl::CancelledError("the client is out of reach"));
    WriteNext();
  }
  void OnCancel() override { subscription_->End(absl::CancelledError("the client has left")); }
  void OnDone() override {
    rpc_.OnDone();
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

  grpc::Status Ended() {
    const absl::Status status = subscription_->status();
    // Here OUT_OF_RANGE is what the contract says, not a request that is too long.
    return absl::IsOutOfRange(status) ? rpc_.EndAs(grpc::StatusCode::OUT_OF_RANGE, status) : rpc_.End(status);
  }

  VllmService* const service_;
  Rpc rpc_;
  std::shared_ptr<KvSubscription> subscription_;
  KvBatch batch_;  // being written
};

VllmService::VllmService(Options options)
    : options_(std::move(options)),
      model_info_(MakeModelInfo(options_)),
      server_info_(MakeServerInfo(options_)),
      start_(options_.rpc.now()),
      kv_events_({.engine = options_.engine, .plan = options_.plan, .multiple = options_.prefix_multiple}) {}

Rpc VllmService::NewRpc(const char* method, grpc::CallbackServerContext* context) const {
  return {options_.rpc, "vllm.grpc.engine.VllmEngine", method, context};
}

grpc::ServerWriteReactor<engine::GenerateResponse>* VllmService::Generate(grpc::CallbackServerContext* context,
                                                                          const engine::GenerateRequest* request) {
  return new GenerateCall(options_.intake, request, NewRpc("Generate", context));
}

grpc::ServerUnaryReactor* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                                   const engine::HealthCheckRequest*,
                                                   engine::HealthCheckResponse* response) {
  Rpc rpc = NewRpc("HealthCheck", context);
  response->set_healthy(options_.ready());
  if (!response->healthy()) response->set_message("the server takes no requests: it drains, or its engine has failed");
  return rpc.Reply();
}

grpc::ServerUnaryReactor* VllmService::Abort(grpc::CallbackServerContext* context, const engine::AbortRequest* request,
                                             engine::AbortResponse*) {
  Rpc rpc = NewRpc("Abort", context);
  const std::string id_space = IdSpaceOf(rpc.identity());
  const absl::Status status = CheckCount("request_ids", request->request_ids_size(), kMaxAbortIds);
  if (status.ok()) {
    for (const std::string& id : request->request_ids())
      options_.intake->registry()->Cancel(id_space, id, EndCause::kAborted);
  }
  return rpc.Reply(status);
}

// What timeout_s would wait for does not matter here: a flush leaves running requests what they use.
grpc::ServerUnaryReactor* VllmService::FlushCache(grpc::CallbackServerContext* context,
                                                  const common::FlushCacheRequest* request,
                                                  common::FlushCacheResponse* response) {
  Rpc rpc = NewRpc("FlushCache", context);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto end = [=](const absl::StatusOr<v1::FlushCacheResponse>& result) {
    if (result.ok()) *response = Flushed(*result);
    rpc.LogOperatorCall(/*tenant=*/"", result.status());
    Rpc(rpc).Finish(reactor, result.status());
  };
  absl::Status status = RequireOperator(rpc.identity(), "FlushCache");
  if (status.ok()) status = CheckRange("timeout_s", request->timeout_s(), Closed(0, kMaxFlushTimeout));
  if (status.ok()) options_.operations->FlushCache(/*tenant=*/std::nullopt, end);
  if (!status.ok()) end(status);
  return reactor;
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                                    const engine::GetModelInfoRequest*,
                                                    engine::GetModelInfoResponse* response) {
  Rpc rpc = NewRpc("GetModelInfo", context);
  *response = model_info_;
  return rpc.Reply();
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                                     const engine::GetServerInfoRequest*,
                                                     engine::GetServerInfoResponse* response) {
  Rpc rpc = NewRpc("GetServerInfo", context);
  const Identity identity = rpc.identity();
  if (identity.Has(Role::kOperator) || identity.Has(Role::kGateway)) {
    *response = server_info_;
    response->set_active_requests(static_cast<uint32_t>(options_.intake->registry()->size()));
    response->set_is_paused(!options_.ready());
    response->set_uptime_seconds(absl::ToDoubleSeconds(rpc.received() - start_));
  } else {
    response->set_server_type(server_info_.server_type());
    response->set_data_parallel_size(server_info_.data_parallel_size());
    response->set_constrained_decoding_start(server_info_.constrained_decoding_start());
  }
  return rpc.Reply();
}

grpc::ServerUnaryReactor* VllmService::GetLoads(grpc::CallbackServerContext* context,
                                                const engine::GetLoadsRequest* request,
                                                engine::GetLoadsResponse* response) {
  Rpc rpc = NewRpc("GetLoads", context);
  const absl::Status status = CheckRange("dp_rank", int64_t{request->dp_rank()}, Closed(0, 0));
  if (status.ok()) {
    response->set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone()));
    response->set_version(options_.version);
    response->set_dp_rank_count(1);
    *response->add_loads() = ToProto(options_.engine->GetLoad(), options_.max_running);
  }
  return rpc.Reply(status);
}

grpc::ServerWriteReactor<common::KvEventBatch>* VllmService::SubscribeKvEvents(
    grpc::CallbackServerContext* context, const common::SubscribeKvEventsRequest* request) {
  const uint64_t start = request->start_sequence_number();
  FreeMessage(request);
  return new KvEventsCall(this, NewRpc("SubscribeKvEvents", context), start);
}

grpc::ServerWriteReactor<common::GetTokenizerChunk>* VllmService::GetTokenizer(
    grpc::CallbackServerContext* context, const common::GetTokenizerRequest* request) {
  FreeMessage(request);
  return new TokenizerCall(this, NewRpc("GetTokenizer", context));
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

}  // namespace berth
