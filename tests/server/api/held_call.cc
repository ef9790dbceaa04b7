#include "tests/server/api/held_call.h"

#include <cstdlib>
#include <filesystem>
#include <stop_token>
#include <utility>
#include <vector>

#include "server/vllm/vllm_service.h"
#include "tests/testing/fake_constraint.h"

namespace berth {
namespace {

namespace engine = ::vllm::grpc::engine;

constexpr uint64_t kSeed = 7;
constexpr uint32_t kEndless = 9000;
constexpr int64_t kManyTokens = 500;
constexpr int64_t kNumBeams = 4;
constexpr int32_t kEndToken = 99;   // where a search needs one
constexpr int64_t kLaterToken = 8;  // comes after those that are there in any state
const std::vector<int32_t> kPrompt = {1, 2, 3};

// Two characters that the output has from kLaterToken on, and not before.
std::string LaterText() {
  Request request;
  request.prompt = kPrompt;
  request.max_tokens = 40;
  request.sampling.seed = kSeed;
  std::string text;
  for (const int32_t token : FakeModelRunner::AnswerTo(request, kFakeVocabSize).tokens) {
    text += token < 95 ? FakeTokenText(token, true) : "~";
  }
  for (size_t at = kLaterToken; at + 2 < text.size(); ++at) {
    const std::string two = text.substr(at, 2);
    if (two.find('~') == std::string::npos && text.find(two) == at) return two;
  }
  ABSL_RAW_LOG(FATAL, "no stop string in %s", text.c_str());
  return "";
}

engine::GenerateRequest ToVllm(const v1::GenerateRequest& in) {
  engine::GenerateRequest out;
  out.set_request_id(in.request_id());
  out.set_stream(true);
  if (in.has_prompt()) out.set_text(in.prompt());
  for (const int32_t token : in.token_ids().ids()) out.mutable_tokenized()->add_input_ids(static_cast<uint32_t>(token));
  engine::SamplingParams& sampling = *out.mutable_sampling_params();
  sampling.set_max_tokens(in.stopping().max_tokens());
  sampling.set_seed(static_cast<int32_t>(in.sampling().seed()));
  *sampling.mutable_stop() = in.stopping().stop();
  if (in.has_structure()) sampling.set_regex(in.structure().regex());
  if (in.has_logprobs()) sampling.set_logprobs(static_cast<int32_t>(in.logprobs()));
  return out;
}

std::unique_ptr<grpc::Service> MakeVllmService(TestServer* server) {
  VllmService::Options options;
  options.intake = server->intake.get();
  options.engine = server->engine.get();
  options.rpc = server->rpc;
  options.operations = server->operations.get();
  options.model = server->runner.info();
  options.plan = server->cache.cache->plan();
  return std::make_unique<VllmService>(std::move(options));
}

// Has a reader read all that comes.
template <typename Message, typename Reader>
std::function<grpc::Status()> ReadsAll(Reader reader) {
  return [reader = std::shared_ptr(std::move(reader))] {
    Message message;
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  };
}

}  // namespace

HeldCall::HeldCall(const Options& options)
    : options_(options), folder_(std::string(std::getenv("TEST_TMPDIR")) + "/held_call") {
  std::filesystem::remove_all(folder_);
  if (resumes()) SaveSession();
  StartServer();
}

HeldCall::~HeldCall() { Release(); }

void HeldCall::StartServer() {
  server_.reset();
  TestServer::Options options;
  // In the queue: behind one sequence, which leaves no room for all of the call's.
  const int64_t num_sequences = options_.kind == CallKind::kBeams ? kNumBeams : 1;
  options.max_running = options_.state == CallState::kQueued ? num_sequences : 64;
  options.session_dir = folder_;
  options.session_dir_limit = int64_t{1} << 30;
  options.unread_timeout = options_.unread_timeout;
  options.compile_grammar = [this](const GrammarSpec& spec, std::stop_token stop) -> absl::StatusOr<CompiledGrammar> {
    compile_.Pass();  // looks at no stop, as some steps of llguidance
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    const int64_t fails_at = spec.text == "dead" ? kLaterToken : -1;
    const FakeConstraint::Options constraint = {.forced = 0, .complete = 0, .fails_at = fails_at};
    return CompiledGrammar{std::make_shared<FakeConstraint>(constraint), 100};
  };
  options.now = [this] {
    ++clock_reads_;
    return SteadyNow();
  };
  options.on_save = [this](SaveEvent* save) {
    save_.Pass();
    if (saves_fail_) *save = {.key = save->key, .last = save->last, .error = absl::ResourceExhaustedError("full")};
  };
  options.make_service = MakeVllmService;
  server_ = std::make_unique<TestServer>(options);
  server_->codec.on_encode = [this](std::string_view, const StopCheck& stop) { encode_.Pass(stop); };
  num_delivered_ = 0;
  server_->codec.on_token = [this] {
    delivery_.Pass();
    ++num_delivered_;
  };
  server_->runner.on_info = [this] { submit_.Pass(); };
  vllm_ = engine::VllmEngine::NewStub(server_->channel);
}

// As a server that has ended with the request under way.
void HeldCall::SaveSession() {
  StartServer();
  server_->gate.Close();
  Call call(server_.get(), MakeRequest());
  server_->gate.Allow(3);
  WaitUntil([this] { return server_->engine->GetLoad().counts.generation_tokens >= 2; }, "tokens to save");
  server_->registry.CancelAll(EndCause::kAborted);
  server_->gate.Open();
  call.ReadAll();
}

v1::GenerateRequest HeldCall::MakeRequest() const {
  const CallState state = options_.state;
  const bool submits_text = state == CallState::kSubmits && !resumes();
  v1::GenerateRequest request;
  request.set_request_id(kId);
  if (state == CallState::kWaitsForText || state == CallState::kTokenises || submits_text) {
    request.set_prompt("abc");
  } else {
    request.mutable_token_ids()->mutable_ids()->Add(kPrompt.begin(), kPrompt.end());
  }
  request.mutable_stopping()->set_max_tokens(options_.max_tokens);
  request.mutable_sampling()->set_seed(kSeed);
  if (options_.has_stop_string) request.mutable_stopping()->add_stop(LaterText());
  if (options_.has_dead_end || state == CallState::kCompiles || state == CallState::kSubmitsCompiled) {
    request.mutable_structure()->set_regex(options_.has_dead_end ? "dead" : "live");
  }
  if (options_.kind == CallKind::kBeams) {
    request.mutable_beam_search()->set_num_beams(kNumBeams);
    if (request.has_structure()) request.mutable_stopping()->add_stop_token_ids(kEndToken);
  }
  if (state == CallState::kPaused) request.set_logprobs(20);  // so that a client soon has much to read
  if (resumes() || saved_only()) request.set_session_id(kSession);
  if (!saved_only()) return request;
  request.set_deliver_saved_only(true);
  request.set_autosave_tokens(state == CallState::kHolds || state == CallState::kPaused ? kManyTokens : 1);
  return request;
}

bool HeldCall::Await(const std::function<bool()>& condition) const {
  if (deadline_ != absl::InfiniteFuture()) return HoldsBefore(deadline_, condition);
  WaitUntil(condition, "the call to be in its state");
  return true;
}

void HeldCall::Start() {
  if (deadline_ != absl::InfiniteFuture()) context_.set_deadline(absl::ToChronoTime(deadline_));
  if (resumes()) {
    v1::ResumeSessionRequest request;
    request.set_session_id(kSession);
    request.set_request_id(kId);
    finish_ = ReadsAll<v1::GenerateResponse>(server_->sessions_stub->Resume(&context_, request));
  } else if (options_.kind == CallKind::kVllm) {
    finish_ = ReadsAll<engine::GenerateResponse>(vllm_->Generate(&context_, ToVllm(MakeRequest())));
  } else if (options_.kind == CallKind::kComplete) {
    auto call = std::async(std::launch::async, [this] {
      v1::GenerateResponse response;
      return server_->inference_stub->Complete(&context_, MakeRequest(), &response);
    });
    finish_ = [call = call.share()] { return call.get(); };
  } else {
    finish_ = ReadsAll<v1::GenerateResponse>(server_->inference_stub->Generate(&context_, MakeRequest()));
  }
}

bool HeldCall::Begin(absl::Time deadline) {
  deadline_ = deadline;
  const auto counts = [this] { return server_->engine->GetLoad().counts; };
  const auto held_by = [this](const Hold& hold) { return Await([&hold] { return hold.holds(); }); };
  switch (options_.state) {
    case CallState::kWaitsForText:
      encode_.Close();
      other_text_ = std::async(std::launch::async, [this] {
        v1::TokenizeRequest text;
        text.set_text("other");
        v1::TokenizeResponse response;
        server_->inference_stub->Tokenize(&other_text_context_, text, &response);
      });
      WaitUntil([this] { return encode_.holds(); }, "another text to be worked on");
      Start();
      return Await([this] { return server_->texts.load().waiting == 1; });
    case CallState::kTokenises:
      encode_.Close();
      Start();
      return held_by(encode_);
    case CallState::kLoads:
      save_.Close();
      StartOther();
      server_->gate.Allow(1);
      WaitUntil([this] { return save_.holds(); }, "another session to be saved");
      Start();
      return Await([this] { return server_->admission.totals().requests == 2; });
    case CallState::kCompiles:
      compile_.Close();
      Start();
      return held_by(compile_);
    case CallState::kSubmits:
    case CallState::kSubmitsCompiled:
      submit_.Close();
      server_->gate.Close();
      Start();
      return held_by(submit_);
    case CallState::kQueued:
      StartOther();
      Start();
      return Await([&] { return counts().num_waiting == 1; });
    case CallState::kRuns:
    case CallState::kHolds:
      server_->gate.Close();
      server_->gate.Allow(2);
      Start();
      return Await([&] { return counts().generation_tokens >= 2; });
    case CallState::kDelivers:
    case CallState::kSaves: {
      Hold& hold = options_.state == CallState::kSaves ? save_ : delivery_;
      hold.Close();
      server_->gate.Close();
      server_->gate.Allow(1);
      Start();
      return held_by(hold);
    }
    case CallState::kPaused:
      server_->gate.Close();
      Start();
      return PauseIt();
  }
  return false;
}

bool HeldCall::PauseIt() {
  const auto paused = [this] { return server_->engine->GetLoad().counts.num_pauses > 0; };
  // In parts, so that the delivery keeps up with the steps.
  for (int64_t num_tokens = kManyTokens; !paused(); num_tokens += kManyTokens) {
    server_->gate.Allow(kManyTokens);
    if (!Await([&] { return num_delivered_ >= num_tokens || paused(); })) return false;
  }
  server_->gate.Open();
  return true;
}

void HeldCall::StartOther() {
  v1::GenerateRequest request;
  request.set_request_id("other");
  request.mutable_token_ids()->add_ids(5);
  request.mutable_stopping()->set_max_tokens(kEndless);
  if (options_.state == CallState::kLoads) {
    request.set_session_id("other");
    request.set_autosave_tokens(1);
    request.set_deliver_saved_only(true);
  }
  server_->gate.Close();
  other_ = std::make_unique<Call>(server_.get(), request);
  WaitUntil([this] { return server_->engine->GetLoad().counts.num_running == 1; }, "another request to run");
}

bool HeldCall::gone() {
  switch (options_.state) {
    case CallState::kWaitsForText:
      return server_->texts.load().waiting == 0;
    case CallState::kTokenises:
      return !encode_.holds();
    default:
      return server_->registry.size() == 0;
  }
}

void HeldCall::Release() {
  if (other_ != nullptr) other_->context.TryCancel();
  other_text_context_.TryCancel();
  for (Hold* hold : {&encode_, &compile_, &submit_, &delivery_, &save_}) hold->Open();
}

grpc::Status HeldCall::Finish() {
  const grpc::Status status = finish_();
  finish_ = nullptr;
  if (other_ != nullptr) other_->ReadAll();
  if (other_text_.valid()) other_text_.get();
  return status;
}

}  // namespace berth
