#include "tests/client/fake_server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "tests/testing/wait_until.h"

namespace berth::cli {
namespace {

int64_t PromptLength(const v1::GenerateRequest& request) {
  if (request.has_token_ids()) return request.token_ids().ids_size();
  return request.has_chat() ? request.chat().messages_size() : static_cast<int64_t>(request.prompt().size());
}

// The i-th output token: a function of the request's input and sampling alone.
int32_t Token(const v1::GenerateRequest& request, int64_t i) {
  uint64_t hash = 1469598103934665603u + request.sampling().seed();
  for (int32_t id : request.token_ids().ids()) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
  for (char c : request.prompt()) hash = (hash ^ static_cast<uint64_t>(c)) * 1099511628211u;
  return static_cast<int32_t>((hash + static_cast<uint64_t>(i) * 7919u) % FakeServer::kVocabSize);
}

// One token and one word per message: "t0 t1 t2 ...".
std::vector<v1::GenerateResponse> Messages(int number, const v1::GenerateRequest& request) {
  const int num_tokens = request.stopping().has_max_tokens() ? static_cast<int>(request.stopping().max_tokens()) : 4;
  std::vector<v1::GenerateResponse> messages(num_tokens);
  for (int i = 0; i < num_tokens; ++i) {
    messages[i].set_text(absl::StrCat(i == 0 ? "" : " ", "t", i));
    messages[i].add_token_ids(Token(request, i));
    messages[i].mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(PromptLength(request)));
    messages[i].mutable_usage()->set_completion_tokens(i + 1);
    if (!request.has_logprobs()) continue;
    v1::TokenLogprobs* logprobs = messages[i].add_logprobs();
    logprobs->set_token_id(messages[i].token_ids(0));
    logprobs->set_logprob(-0.5f);
    logprobs->set_text(messages[i].text());
  }
  messages.front().set_request_id(absl::StrCat("fake-", number));
  messages.back().set_finish_reason(v1::FINISH_REASON_LENGTH);
  return messages;
}

}  // namespace

FakeServer::FakeServer(Hooks hooks) : hooks_(std::move(hooks)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::Inference::Service*>(this));
  builder.RegisterService(static_cast<v1::Control::Service*>(this));
  server_ = builder.BuildAndStart();
  server_->GetHealthCheckService()->SetServingStatus("readiness", false);
  address_ = absl::StrCat("127.0.0.1:", port);
  stub_ = v1::Inference::NewStub(*Connect({.server = address_}));
}

FakeServer::~FakeServer() { server_->Shutdown(std::chrono::system_clock::now()); }

int FakeServer::Enter(const v1::GenerateRequest& request) {
  MutexLock lock(&mutex_);
  const int number = static_cast<int>(requests_.size());
  requests_.push_back(request);
  peak_in_flight_ = std::max(peak_in_flight_, ++in_flight_);
  changed_.SignalAll();
  while (peak_in_flight_ < hooks_.wait_for_in_flight) changed_.Wait(&mutex_);
  return number;
}

void FakeServer::Leave(bool cancelled) {
  MutexLock lock(&mutex_);
  --in_flight_;
  if (cancelled) ++num_cancelled_;
}

grpc::Status FakeServer::Stream(int number, grpc::ServerContext* context, const v1::GenerateRequest& request,
                                grpc::ServerWriter<v1::GenerateResponse>* writer) const {
  const grpc::Status refused = hooks_.refuse ? hooks_.refuse(number) : grpc::Status::OK;
  if (!refused.ok()) return refused;
  std::vector<v1::GenerateResponse> messages = Messages(number, request);
  if (hooks_.edit) hooks_.edit(number, &messages);
  for (const v1::GenerateResponse& message : messages) {
    writer->Write(message);
    if (hooks_.hang) WaitUntil([context] { return context->IsCancelled(); }, "the client to cancel");
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                  grpc::ServerWriter<v1::GenerateResponse>* writer) {
  const int number = Enter(*request);
  const grpc::Status status = Stream(number, context, *request, writer);
  Leave(context->IsCancelled());
  return status;
}

grpc::Status FakeServer::Complete(grpc::ServerContext*, const v1::GenerateRequest* request,
                                  v1::GenerateResponse* response) {
  const int number = Enter(*request);
  Leave(/*cancelled=*/false);
  if (const grpc::Status refused = hooks_.refuse ? hooks_.refuse(number) : grpc::Status::OK; !refused.ok()) {
    return refused;
  }
  for (uint32_t i = 0; i < std::max(1u, request->n()); ++i) {
    v1::GenerateResponse& output = i == 0 ? *response : *response->add_other_outputs();
    output.set_index(i);
    output.set_text(absl::StrCat("output ", i));
  }
  response->mutable_usage()->set_completion_tokens(9);
  return grpc::Status::OK;
}

v1::GetModelInfoResponse FakeServer::ModelInfo() {
  v1::GetModelInfoResponse info;
  info.set_name("fake");
  info.set_model_type("fake_hybrid");
  info.set_dtype("float32");
  info.set_device("cpu");
  info.set_vocab_size(kVocabSize);
  info.set_num_layers(4);
  info.set_num_parameters(2'500'000);
  info.set_weight_bytes(10'000'000);
  info.add_eos_token_ids(kEndToken);
  v1::CacheGroup* keys = info.add_cache_groups();
  keys->set_kind("sliding");
  keys->add_layers(1);
  keys->set_bytes_per_token(2048);
  keys->set_block_tokens(16);
  keys->set_window(512);
  keys->set_dtype("int8");
  v1::CacheGroup* states = info.add_cache_groups();
  states->set_kind("recurrent");
  states->add_layers(0);
  states->set_bytes_per_sequence(1 << 20);
  info.mutable_limits()->set_max_sequence_tokens(512);
  return info;
}

grpc::Status FakeServer::GetModelInfo(grpc::ServerContext*, const v1::GetModelInfoRequest*,
                                      v1::GetModelInfoResponse* response) {
  *response = ModelInfo();
  return grpc::Status::OK;
}

grpc::Status FakeServer::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                       v1::GetServerInfoResponse* response) {
  response->set_version("0.0.0-fake");
  response->set_uptime_seconds(61.5);
  return grpc::Status::OK;
}

grpc::Status FakeServer::Drain(grpc::ServerContext*, const v1::DrainRequest*, v1::DrainResponse* response) {
  response->set_requests(3);
  response->set_grace_seconds(30);
  return grpc::Status::OK;
}

grpc::Status FakeServer::FlushCache(grpc::ServerContext*, const v1::FlushCacheRequest* request,
                                    v1::FlushCacheResponse* response) {
  response->set_arena_bytes(request->has_tenant() ? 1 << 20 : 2 << 20);
  response->set_disk_tier_bytes(static_cast<int64_t>(request->tenant().size()));
  return grpc::Status::OK;
}

grpc::Status FakeServer::EraseTenant(grpc::ServerContext*, const v1::EraseTenantRequest* request,
                                     v1::EraseTenantResponse* response) {
  if (request->tenant() == "locked") return {grpc::StatusCode::UNAVAILABLE, "call it again later"};
  response->set_requests(1);
  response->set_sessions(2);
  response->set_session_bytes(3 << 20);
  return grpc::Status::OK;
}

grpc::Status FakeServer::GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*, v1::GetLoadResponse* response) {
  response->set_running(3);
  response->set_generation_tokens(1 << 20);
  v1::CacheOccupancy* cache = response->mutable_cache();
  cache->set_arena_bytes(64 << 20);
  cache->set_free_bytes(32 << 20);
  v1::PoolOccupancy* pool = cache->add_pools();
  pool->set_kind("recurrent");
  pool->set_live_bytes(16 << 20);
  pool->set_cached_bytes(16 << 20);
  pool->set_live_tokens(3);
  return grpc::Status::OK;
}

int FakeServer::peak_in_flight() const {
  MutexLock lock(&mutex_);
  return peak_in_flight_;
}

int FakeServer::num_cancelled() const {
  MutexLock lock(&mutex_);
  return num_cancelled_;
}

std::vector<v1::GenerateRequest> FakeServer::requests() const {
  MutexLock lock(&mutex_);
  return requests_;
}

void FakeServer::AwaitInFlight(int num_calls) const {
  MutexLock lock(&mutex_);
  while (in_flight_ < num_calls) changed_.Wait(&mutex_);
}

}  // namespace berth::cli
