// A script of calls to a server whose model has no weights. An input has parts: the first line of each names a method,
// the rest is its message as protobuf text, or else is sent as it is.
//
//   berth.v1.Inference.Generate hold tenant=a role=user
//   token_ids { ids: 1 } stopping { max_tokens: 9 }
//   ===
//   berth.v1.Control.Abort
//   all: true
//
// Words after the method: `hold` leaves the answers unread until the other calls are over, `cancel` cancels the call
// instead; key=value is metadata. In place of a method, `encoder` chooses a model with an encoder, `identities` turns
// authentication on, and `file` writes the file of a session before the server starts.
//
// However the calls end, no request and no lease is left of them. No call fails by an error of the server, and every
// step finds its cache as it should be. After `file` both may happen: its cache is made up, which only the model can
// notice.
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>

#include <list>

#include "absl/strings/str_cat.h"
#include "server/storage/session_id.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/server/api/fake_identities.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/fake_constraint.h"

namespace berth {
namespace {

constexpr size_t kMaxCalls = 8;
constexpr int64_t kMaxSnapshotBytes = 1 << 16;
constexpr absl::Duration kLong = absl::Seconds(50);

struct Step {
  std::vector<std::string> words;
  std::string body;
};

std::vector<Step> ReadScript(const std::string& text) {
  std::vector<Step> steps;
  for (absl::string_view part : absl::StrSplit(text, absl::MaxSplits("\n===\n", kMaxCalls - 1))) {
    const size_t line = part.find('\n');
    steps.push_back({.words = absl::StrSplit(part.substr(0, line), ' ', absl::SkipEmpty()),
                     .body = line == absl::string_view::npos ? "" : std::string(part.substr(line + 1))});
    if (steps.back().words.empty()) steps.pop_back();
  }
  return steps;
}

bool Has(const Step& step, absl::string_view word) {
  return std::find(step.words.begin(), step.words.end(), word) != step.words.end();
}

// The message's bytes on the wire.
std::string Encode(const Step& step) {
  namespace pb = google::protobuf;
  const pb::MethodDescriptor* const method = pb::DescriptorPool::generated_pool()->FindMethodByName(step.words[0]);
  if (method == nullptr) return step.body;
  const std::unique_ptr<pb::Message> message(
      pb::MessageFactory::generated_factory()->GetPrototype(method->input_type())->New());
  return ParseMessage(step.body, message.get()) ? message->SerializeAsString() : step.body;
}

// A call of any method. Events come through `queue`.
class ScriptedCall {
 public:
  ScriptedCall(grpc::GenericStub* stub, const Step& step) : cancel_(Has(step, "cancel")) {
    for (size_t i = 1; i < step.words.size(); ++i) {
      const std::pair<std::string, std::string> pair = absl::StrSplit(step.words[i], absl::MaxSplits('=', 1));
      for (const char* key : {"tenant", "role", "traceparent"}) {
        if (pair.first == key && IsPrintable(pair.second)) context_.AddMetadata(pair.first, pair.second);
      }
    }
    std::string path = absl::StrCat("/", step.words[0]);
    if (const size_t dot = path.rfind('.'); dot != std::string::npos) path[dot] = '/';
    stream_ = stub->PrepareCall(&context_, path, &queue_);
    stream_->StartCall(this);
    Next();
    grpc::Slice slice(Encode(step));
    stream_->WriteLast(grpc::ByteBuffer(&slice, 1), {}, this);
    Next();
  }
  // Returns how the call ended.
  grpc::Status Finish() {
    if (cancel_) context_.TryCancel();
    bool reads = true;
    while (reads) {
      grpc::ByteBuffer answer;
      stream_->Read(&answer, this);
      reads = Next();
    }
    grpc::Status status;
    stream_->Finish(&status, this);
    Next();
    return status;
  }

 private:
  static bool IsPrintable(absl::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  }
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  const bool cancel_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

void WriteSession(const std::string& folder, const std::string& text) {
  v1::SessionFile file;
  if (!ParseMessage(text, &file) || !CheckSessionId("", file.request().session_id()).ok()) return;
  CacheSnapshot snapshot;
  for (const auto& group : file.snapshot_groups()) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(group.num_units(), group.unit_bytes(), &bytes) || bytes < 0 ||
        bytes > kMaxSnapshotBytes) {
      return;
    }
    snapshot.size_bytes += bytes;
  }
  snapshot.bytes = std::make_unique<std::byte[]>(static_cast<size_t>(snapshot.size_bytes));
  const SessionPlace place = {.tenant_hash = TenantHash(file.request().cache_salt()),
                              .id = file.request().session_id()};
  WriteSessionFile(folder + "/" + SessionFileName(place), file, snapshot).IgnoreError();
}

absl::StatusOr<CompiledGrammar> Compile(const GrammarSpec& spec, std::stop_token) {
  if (spec.text.find("bad") != std::string::npos) return absl::InvalidArgumentError("bad");
  FakeConstraint::Options options = {.seed = spec.text.size(), .end_tokens = {99}};
  options.dead = spec.text.size() % 3;
  return CompiledGrammar{.start = std::make_shared<FakeConstraint>(options), .size_bytes = 100};
}

void RunScript(const std::vector<Step>& steps) {
  static const FakeIdentities identities;
  TestServer::Options options;
  options.max_sequence_tokens = 100;
  options.session_dir = FuzzFolder() + "/sessions";
  options.compile_grammar = Compile;
  options.tenants = R"({"tenants": [{"name": "a", "running_sequences": 3, "session_bytes": 2000}]})";
  std::filesystem::remove_all(options.session_dir);
  std::filesystem::create_directory(options.session_dir);
  for (const Step& step : steps) {
    if (step.words[0] == "encoder") options.has_encoder = true;
    if (step.words[0] == "identities") options.identities = &identities;
    if (step.words[0] == "file") WriteSession(options.session_dir, step.body);
  }
  TestServer server(options);
  grpc::GenericStub stub(server.server->InProcessChannel({}));
  const bool has_forged_cache =
      std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.words[0] == "file"; });
  const auto finish = [&](ScriptedCall* call) {
    const grpc::Status status = call->Finish();
    const bool is_ours =
        status.error_code() == grpc::StatusCode::INTERNAL || status.error_code() == grpc::StatusCode::UNKNOWN;
    FUZZ_CHECK(!is_ours || has_forged_cache, absl::StrCat(status.error_code(), ": ", status.error_message()));
  };
  std::list<ScriptedCall> held;
  for (const Step& step : steps) {
    if (step.words[0].find('.') == std::string::npos) continue;
    held.emplace_back(&stub, step);
    if (Has(step, "hold")) continue;
    finish(&held.back());
    held.pop_back();
  }
  for (ScriptedCall& call : held) finish(&call);
  FUZZ_CHECK(server.engine->WaitUntilIdle(kLong), "a request is left");
  server.server->Shutdown(absl::ToChronoTime(absl::Now() + kLong));
  FUZZ_CHECK(server.registry.size() == 0, "a request is left in the registry");
  FUZZ_CHECK(server.grammars->load().waiting == 0, "a grammar is left");
  FUZZ_CHECK(server.engine->GetLoad().occupancy.num_leases == 0, "a lease is left");
  FUZZ_CHECK(server.runner.mismatch().empty() || has_forged_cache, server.runner.mismatch());
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<berth::Step> steps = berth::ReadScript(berth::TextOf(data, size));
  if (steps.empty()) return -1;
  berth::RunScript(steps);
  return 0;
}
