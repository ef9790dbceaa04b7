#include "client/trace.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "berth/v1/control.grpc.pb.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/proto_json.h"

namespace berth::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kIntro[] = R"(berth-cli trace [flags]

Writes what the server's last 10,000 steps were and took as a Chrome trace. Open the file in Perfetto
(https://ui.perfetto.dev) or in chrome://tracing.
)";

constexpr char kMagic[] = "BERTHST1";
constexpr int kPid = 1;
constexpr int kTid = 1;

struct TraceOptions {
  ConnectionOptions connection;
  std::string out = "berth-trace.json";
  std::string from;
  int64_t last = 0;

  void AddTo(FlagSet* flags) {
    flags->AddGroup("Trace");
    flags->Add("out", &out, "file", "File to write. -: standard output.");
    flags->Add("from", &from, "file",
               "Read the steps from a file that a server left in its --crash_dir. Empty: ask the server.");
    flags->Add("last", &last, Between<int64_t>(0, 1 << 30), "Write only this many steps, the newest ones. 0: all.");
    connection.AddTo(flags);
  }
};

Json Event(const char* phase, const char* name, int64_t ts) {
  return {{"name", name}, {"ph", phase}, {"ts", ts}, {"pid", kPid}, {"tid", kTid}};
}

Json Slice(const char* name, int64_t ts, int64_t duration) {
  Json event = Event("X", name, ts);
  event["dur"] = std::max<int64_t>(0, duration);
  return event;
}

Json Counter(const char* name, int64_t ts, Json values) {
  Json event = Event("C", name, ts);
  event["args"] = std::move(values);
  return event;
}

Json Named(const char* what, const char* name) {
  Json event = Event("M", what, 0);
  event["args"] = {{"name", name}};
  return event;
}

const char* NameOf(const v1::StepRecord& step) {
  if (step.run_us() == 0 && step.commit_us() == 0) return "step under way";
  if (step.failed() != 0) return "failed step";
  if (step.decode_rows() == step.rows()) return "decode";
  return step.decode_rows() == 0 ? "prefill" : "prefill and decode";
}

void AddStep(const v1::StepRecord& step, int64_t start, Json* events) {
  const int64_t end = start + step.plan_us() + step.run_us() + step.commit_us();
  Json slice = Slice(NameOf(step), start, end - start);
  slice["args"] = ToJson(step);
  events->push_back(std::move(slice));
  events->push_back(Counter("sequences", start, {{"running", step.running()}, {"waiting", step.waiting()}}));
  events->push_back(Slice("plan", start, step.plan_us()));
  events->push_back(Slice("run", start + step.plan_us(), step.run_us()));
  events->push_back(Slice("commit", end - step.commit_us(), step.commit_us()));
  events->push_back(Counter("free bytes of the arena", end, {{"bytes", step.free_bytes()}}));
  events->push_back(Counter("evicted units", end, {{"units", step.evicted_units()}}));
}

absl::StatusOr<v1::GetStepsResponse> AskServer(const TraceOptions& options) {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options.connection);
  if (!channel.ok()) return channel.status();
  const std::unique_ptr<v1::Control::Stub> stub = v1::Control::NewStub(*channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::GetStepsRequest request;
  request.set_last(static_cast<uint32_t>(options.last));
  v1::GetStepsResponse response;
  const grpc::Status status = stub->GetSteps(&context, request, &response);
  if (!status.ok()) return absl::UnavailableError(DescribeError(options.connection.server, status));
  return response;
}

absl::Status Torn(const std::string& path) {
  return absl::DataLossError(absl::StrCat(path, " was not written to a server's --crash_dir, or it is torn"));
}

absl::Status Write(const std::string& path, const std::string& text, std::ostream& standard_output) {
  if (path == "-") {
    standard_output << text;
    return absl::OkStatus();
  }
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file.fail() ? absl::UnavailableError(absl::StrCat("cannot write ", path)) : absl::OkStatus();
}

}  // namespace

std::string ChromeTrace(const v1::GetStepsResponse& steps) {
  Json events = Json::array({Named("process_name", "berth-server"), Named("thread_name", "engine")});
  const int64_t first = steps.steps_size() > 0 ? steps.steps(0).start_us() : 0;
  for (const v1::StepRecord& step : steps.steps()) AddStep(step, step.start_us() - first, &events);
  return Json({{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}).dump() + "\n";
}

absl::StatusOr<v1::GetStepsResponse> ReadCrashFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::stringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  std::array<uint64_t, 2> sizes;  // words of a record, records
  constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
  constexpr size_t kHeader = kMagicBytes + sizeof(sizes);
  if (bytes.size() < kHeader || std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0) return Torn(path);
  std::memcpy(sizes.data(), bytes.data() + kMagicBytes, sizeof(sizes));
  const google::protobuf::Descriptor& type = *v1::StepRecord::descriptor();
  const size_t num_words = (bytes.size() - kHeader) / sizeof(int64_t);
  if (sizes[0] != static_cast<uint64_t>(type.field_count()) || num_words / sizes[0] != sizes[1]) return Torn(path);
  v1::GetStepsResponse response;
  for (size_t at = 0; at < sizes[0] * sizes[1]; ++at) {
    if (at % sizes[0] == 0) response.add_steps();
    v1::StepRecord* const step = response.mutable_steps(response.steps_size() - 1);
    int64_t word = 0;
    std::memcpy(&word, bytes.data() + kHeader + at * sizeof(word), sizeof(word));
    step->GetReflection()->SetInt64(step, type.field(static_cast<int>(at % sizes[0])), word);
  }
  return response;
}

int RunTrace(absl::Span<const std::string> args, Environment& environment) {
  TraceOptions options;
  FlagSet flags;
  options.AddTo(&flags);
  const CommandLine command_line = {.command = "trace", .intro = kIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;
  absl::StatusOr<v1::GetStepsResponse> steps = options.from.empty() ? AskServer(options) : ReadCrashFile(options.from);
  if (!steps.ok()) return Fail("trace", steps.status().message(), environment);
  if (options.last > 0 && steps->steps_size() > options.last) {
    steps->mutable_steps()->DeleteSubrange(0, steps->steps_size() - static_cast<int>(options.last));
  }
  if (absl::Status s = Write(options.out, ChromeTrace(*steps), environment.out); !s.ok()) {
    return Fail("trace", s.message(), environment);
  }
  if (options.out != "-") environment.out << steps->steps_size() << " steps written to " << options.out << std::endl;
  return kExitOk;
}

}  // namespace berth::cli
