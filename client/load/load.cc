#include "client/load/load.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/load/capacity.h"
#include "client/load/load_sampler.h"
#include "client/load/options.h"
#include "client/load/plots.h"
#include "client/load/progress.h"
#include "client/load/report.h"
#include "client/load/report_page.h"
#include "client/load/runner.h"
#include "client/load/trace_file.h"
#include "client/load/vllm_json.h"
#include "client/load/workload.h"

namespace berth::cli {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kDefaultRequests = 100;
constexpr int64_t kWarmupConcurrency = 4;
constexpr absl::Duration kSampleInterval = absl::Milliseconds(250);

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  std::string line;
  while (std::getline(file, line)) {
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty())
    return absl::InvalidArgumentError(absl::StrCat("--prompt_file: cannot read a non-empty line from ", path));
  return lines;
}

// One load test against one server.
class LoadTest {
 public:
  LoadTest(const LoadOptions& options, std::shared_ptr<grpc::Channel> channel, Environment* environment)
      : options_(options),
        environment_(environment),
        channel_(std::move(channel)),
        stub_(v1::Inference::NewStub(channel_)),
        control_(v1::Control::NewStub(channel_)) {}

  // Returns the exit code.
  int Run() {
    const absl::Status prepared = Prepare();
    if (!prepared.ok()) return Fail("load", prepared.message(), *environment_);
    if (options_.warmup > 0 && !WarmUp()) return kExitInterrupted;
    if (options_.find_capacity) return FindCapacity();
    std::vector<std::vector<int32_t>> references;
    if (options_.verify) {
      const Runner::Result alone = RunOnce(ReferenceOptions(), *workload_);
      if (alone.cancelled) return kExitInterrupted;
      const std::string error = TakeReferences(alone, &references);
      if (!error.empty()) return Fail("load", error, *environment_);
    }
    return Conclude(Measure(options_.rate.value_or(0), std::move(references)), nullptr);
  }

 private:
  // Asks for the model, makes the workload. The message of an error is one line.
  absl::Status Prepare() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Status status = control_->GetModelInfo(&context, v1::GetModelInfoRequest(), &model_);
    if (!status.ok()) return absl::UnavailableError(DescribeError(options_.connection.server, status));
    Workload::Options workload = {.prompt_tokens = options_.PromptTokens(),
                                  .output_tokens = options_.output_tokens,
                                  .temperature = options_.temperature,
                                  .num_distinct = options_.verify ? options_.verify_prompts : 0,
                                  .seed = options_.seed,
                                  .prefix_tokens = options_.prefix_tokens,
                                  .num_prefixes = options_.num_prefixes,
                                  .num_turns = options_.turns,
                                  .turn_tokens = options_.turn_tokens,
                                  .history = options_.history};
    if (!options_.prompt_file.empty()) {
      auto lines = ReadLines(options_.prompt_file);
      if (!lines.ok()) return lines.status();
      workload.prompts = *std::move(lines);
    }
    if (!options_.trace.empty()) {
      auto entries = ReadTraceFile(options_.trace);
      if (!entries.ok())
        return absl::Status(entries.status().code(), absl::StrCat("--trace: ", entries.status().message()));
      for (TraceEntry& entry : *entries) entry.arrival /= options_.trace_speed;
      workload.trace = *std::move(entries);
    }
    Workload::Options warmup = workload;
    // Other prompts of the same lengths.
    warmup.seed = ~options_.seed;
    warmup.num_distinct = 0;
    for (auto [from, to] : {std::pair(&workload, &workload_), std::pair(&warmup, &warmup_workload_)}) {
      auto created = Workload::Create(std::move(*from), model_);
      if (!created.ok()) return created.status();
      *to = *std::move(created);
    }
    return absl::OkStatus();
  }

  // False: interrupted.
  bool WarmUp() {
    Runner::Options options;
    options.concurrency = options_.concurrency.value_or(kWarmupConcurrency);
    options.num_requests = options_.warmup;
    options.timeout = options_.timeout.value_or(absl::InfiniteDuration());
    return !RunOnce(std::move(options), *warmup_workload_).cancelled;
  }

  Runner::Options ReferenceOptions() const {
    Runner::Options options;
    options.num_requests =
        std::min(options_.verify_prompts, NumRequests() > 0 ? NumRequests() : options_.verify_prompts);
    options.timeout = options_.timeout.value_or(absl::InfiniteDuration());
    options.verify = true;
    return options;
  }

  // A run, and what the server's load was meanwhile.
  struct Measured {
    Runner::Result result;
    std::vector<LoadSample> samples;
    double rate = 0;
    absl::Time began = absl::Now();
  };

  // `rate`: of an open loop without a trace. `first`: the conversation that comes first.
  Measured Measure(double rate, std::vector<std::vector<int32_t>> references, int64_t first = 0) {
    Runner::Options options = {.concurrency = options_.concurrency.value_or(1),
                               .rate = rate,
                               .arrivals = workload_->Arrivals(),
                               .num_requests = NumRequests(),
                               .duration = options_.duration.value_or(absl::InfiniteDuration()),
                               .timeout = options_.timeout.value_or(absl::InfiniteDuration()),
                               .seed = options_.seed,
                               .first_conversation = first,
                               .verify = options_.verify,
                               .references = std::move(references)};
    Measured measured = {.rate = rate};
    std::optional<LoadSampler> sampler;
    if (!options_.html_out.empty()) sampler.emplace(control_.get(), kSampleInterval);
    measured.result = RunOnce(std::move(options), *workload_);
    if (sampler) measured.samples = sampler->Stop();
    return measured;
  }

  int FindCapacity() {
    Measured best;
    bool interrupted = false;
    int64_t num_sent = 0;  // no probe sends what the server's prefix cache has from another one
    const Capacity capacity = SearchCapacity(options_.rate.value_or(1), [&](double rate, Probe* probe) {
      Measured measured = Measure(rate, {}, num_sent);
      num_sent += static_cast<int64_t>(measured.result.records.size());
      interrupted = measured.result.cancelled;
      *probe = ProbeOf(rate, BuildReport(measured.result.records, measured.result.elapsed, options_.limits));
      // Without one that held, the report shows the last that did not.
      if (probe->held || (!interrupted && best.rate == 0)) best = std::move(measured);
      return !interrupted;
    });
    if (interrupted) return kExitInterrupted;
    return Conclude(best, &capacity);
  }

  // 0: no limit.
  int64_t NumRequests() const {
    const bool ends = options_.duration || !options_.trace.empty();
    return options_.requests.value_or(ends ? 0 : kDefaultRequests);
  }

  // Runs under Ctrl-C and the progress line.
  Runner::Result RunOnce(Runner::Options options, const Workload& workload) {
    const int64_t num_requests = options.num_requests;
    Runner runner(std::move(options), &workload, stub_.get());
    const Interrupt::Scope scope(&environment_->interrupt, [&runner] { runner.Cancel(); });
    std::optional<ProgressLine> progress;
    if (options_.progress.value_or(environment_->err_is_terminal)) {
      progress.emplace(&runner, num_requests, environment_->err_is_terminal, &environment_->err);
    }
    return runner.Run();
  }

  // "" or what was wrong with a request that was alone.
  static std::string TakeReferences(const Runner::Result& alone, std::vector<std::vector<int32_t>>* references) {
    references->resize(alone.records.size());
    for (const RequestRecord& record : alone.records) {
      const std::string error = record.ok() ? (record.faults.empty() ? "" : record.faults[0])
                                            : absl::StrCat(CodeName(record.code), ": ", record.error);
      if (!error.empty()) return absl::StrCat("request ", record.index, ", sent alone: ", error);
      (*references)[record.index] = record.token_ids;
    }
    return "";
  }

  RunDescription Describe(double rate) const {
    return {.server = options_.connection.server,
            .model = model_.name(),
            .dtype = model_.dtype(),
            .device = model_.device(),
            .concurrency = rate > 0 || options_.open_loop() ? 0 : options_.concurrency.value_or(1),
            .rate = rate,
            .prompts = DescribePrompts(),
            .output_tokens = options_.trace.empty() ? options_.output_tokens.text() : "of the trace",
            .conversations = options_.DescribeConversations(),
            .temperature = options_.temperature,
            .seed = options_.seed};
  }

  std::string DescribePrompts() const {
    if (!options_.trace.empty()) return absl::StrCat("of ", options_.trace);
    if (!options_.prompt_file.empty()) return absl::StrCat("lines of ", options_.prompt_file);
    const std::string lengths = options_.PromptTokens().text();
    if (options_.prefix_tokens == 0) return lengths;
    return absl::StrCat(options_.prefix_tokens, " shared tokens (", options_.num_prefixes, " beginnings) + ", lengths);
  }

  // Reports; the exit code. `capacity`: null without a search.
  int Conclude(const Measured& measured, const Capacity* capacity) {
    const Runner::Result& result = measured.result;
    Report report = BuildReport(result.records, result.elapsed, options_.limits);
    report.run = Describe(measured.rate);
    report.verified = options_.verify;
    report.num_references = options_.verify ? ReferenceOptions().num_requests : 0;
    std::ostream& text_out = options_.json_out == "-" ? environment_->err : environment_->out;
    text_out << (capacity == nullptr ? "" : CapacityText(*capacity)) << ReportText(report) << std::flush;
    ordered_json json = ReportJson(report);
    if (capacity != nullptr) json["capacity"] = CapacityJson(*capacity);
    if (const absl::Status s = WriteFiles(report, measured, std::move(json)); !s.ok()) {
      return Fail("load", s.message(), *environment_);
    }
    if (result.cancelled) return kExitInterrupted;
    if (report.num_faulty > 0 || (report.num_failed > 0 && !options_.allow_errors)) return kExitFailed;
    if (capacity != nullptr && capacity->outcome != CapacityOutcome::kFound) return kExitFailed;
    return kExitOk;
  }

  absl::Status WriteFiles(const Report& report, const Measured& measured, ordered_json json) {
    const Runner::Result& result = measured.result;
    const bool has_course = !options_.vllm_json_out.empty() || !options_.html_out.empty();
    const Course course = has_course ? MakeCourse(result.records, result.elapsed) : Course();
    const auto text = [](const ordered_json& value) {
      return value.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
    };
    if (absl::Status s = Write("json_out", options_.json_out, [&] { return text(json); }); !s.ok()) return s;
    absl::Status s = Write("vllm_json_out", options_.vllm_json_out,
                           [&] { return text(VllmJson(report, result.records, course, measured.began)); });
    if (!s.ok()) return s;
    return Write("html_out", options_.html_out, [&] {
      json["plots"] = PlotsJson(result.records, course, measured.samples);
      return ReportPage(json);
    });
  }

  // Writes what `make` returns to the file of a flag; "-": to stdout; "": nowhere.
  absl::Status Write(const char* flag, const std::string& path, const std::function<std::string()>& make) {
    if (path.empty()) return absl::OkStatus();
    if (path == "-") {
      environment_->out << make() << std::flush;
      return absl::OkStatus();
    }
    if (std::ofstream(path) << make() << std::flush) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("--", flag, ": cannot write ", path));
  }

  const LoadOptions& options_;
  Environment* environment_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<v1::Control::Stub> control_;
  v1::GetModelInfoResponse model_;
  std::optional<Workload> workload_;
  std::optional<Workload> warmup_workload_;
};

}  // namespace

int RunLoad(absl::Span<const std::string> args, Environment& environment) {
  LoadOptions options;
  FlagSet flags;
  options.AddTo(&flags);
  const CommandLine command_line = {.command = "load", .intro = kLoadIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;
  const absl::Status valid = options.Validate();
  if (!valid.ok()) return Fail("load", valid.message(), environment, kExitUsage);
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options.connection);
  if (!channel.ok()) return Fail("load", channel.status().message(), environment, kExitUsage);
  return LoadTest(options, *std::move(channel), &environment).Run();
}

}  // namespace berth::cli
