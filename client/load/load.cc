#include "client/load/load.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/load/options.h"
#include "client/load/progress.h"
#include "client/load/report.h"
#include "client/load/runner.h"
#include "client/load/workload.h"

namespace berth::cli {
namespace {

constexpr int64_t kDefaultRequests = 100;

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
  LoadTest(const LoadOptions& options, Environment* environment)
      : options_(options),
        environment_(environment),
        channel_(Connect(options.server)),
        stub_(v1::Inference::NewStub(channel_)) {}

  // Returns the exit code.
  int Run() {
    const absl::Status prepared = Prepare();
    if (!prepared.ok()) return Fail("load", prepared.message(), *environment_);
    std::vector<std::vector<int32_t>> references;
    if (options_.verify) {
      const Runner::Result alone = RunOnce(ReferenceOptions());
      if (alone.cancelled) return kExitInterrupted;
      const std::string error = TakeReferences(alone, &references);
      if (!error.empty()) return Fail("load", error, *environment_);
    }
    const Runner::Result result = RunOnce(LoadRunnerOptions(std::move(references)));
    return Conclude(result);
  }

 private:
  // Asks for the model, makes the workload. The message of an error is one line.
  absl::Status Prepare() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Status status =
        v1::Control::NewStub(channel_)->GetModelInfo(&context, v1::GetModelInfoRequest(), &model_);
    if (!status.ok()) return absl::UnavailableError(DescribeError(options_.server, status));
    Workload::Options workload = {.prompt_tokens = options_.PromptTokens(),
                                  .output_tokens = options_.output_tokens,
                                  .prompts = {},
                                  .temperature = options_.temperature,
                                  .num_distinct = options_.verify ? options_.verify_prompts : 0,
                                  .seed = options_.seed};
    if (!options_.prompt_file.empty()) {
      auto lines = ReadLines(options_.prompt_file);
      if (!lines.ok()) return lines.status();
      workload.prompts = *std::move(lines);
    }
    auto created = Workload::Create(std::move(workload), model_);
    if (!created.ok()) return created.status();
    workload_ = *std::move(created);
    return absl::OkStatus();
  }

  Runner::Options ReferenceOptions() const {
    Runner::Options options;
    options.num_requests =
        std::min(options_.verify_prompts, NumRequests() > 0 ? NumRequests() : options_.verify_prompts);
    options.timeout = options_.timeout.value_or(absl::InfiniteDuration());
    options.verify = true;
    return options;
  }

  Runner::Options LoadRunnerOptions(std::vector<std::vector<int32_t>> references) const {
    return {.concurrency = options_.concurrency.value_or(1),
            .rate = options_.rate.value_or(0),
            .num_requests = NumRequests(),
            .duration = options_.duration.value_or(absl::InfiniteDuration()),
            .timeout = options_.timeout.value_or(absl::InfiniteDuration()),
            .seed = options_.seed,
            .verify = options_.verify,
            .references = std::move(references)};
  }

  // 0: no limit.
  int64_t NumRequests() const { return options_.requests.value_or(options_.duration ? 0 : kDefaultRequests); }

  // Runs under Ctrl-C and the progress line.
  Runner::Result RunOnce(Runner::Options options) {
    const int64_t num_requests = options.num_requests;
    Runner runner(std::move(options), &*workload_, stub_.get());
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

  RunDescription Describe() const {
    return {.server = options_.server,
            .model = model_.name(),
            .dtype = model_.dtype(),
            .device = model_.device(),
            .concurrency = options_.rate ? 0 : options_.concurrency.value_or(1),
            .rate = options_.rate.value_or(0),
            .prompts = options_.prompt_file.empty() ? options_.PromptTokens().text()
                                                    : absl::StrCat("lines of ", options_.prompt_file),
            .output_tokens = options_.output_tokens.text(),
            .temperature = options_.temperature,
            .seed = options_.seed};
  }

  // Reports; the exit code.
  int Conclude(const Runner::Result& result) {
    Report report = BuildReport(result.records, result.elapsed, options_.limits);
    report.run = Describe();
    report.verified = options_.verify;
    report.num_references = options_.verify ? ReferenceOptions().num_requests : 0;
    const bool json_to_stdout = options_.json_out == "-";
    (json_to_stdout ? environment_->err : environment_->out) << ReportText(report) << std::flush;
    const std::string json = ReportJson(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (json_to_stdout) {
      environment_->out << json << std::flush;
    } else if (!options_.json_out.empty() && !(std::ofstream(options_.json_out) << json << std::flush)) {
      return Fail("load", absl::StrCat("--json_out: cannot write ", options_.json_out), *environment_);
    }
    if (result.cancelled) return kExitInterrupted;
    if (report.num_faulty > 0 || (report.num_failed > 0 && !options_.allow_errors)) return kExitFailed;
    return kExitOk;
  }

  const LoadOptions& options_;
  Environment* environment_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  v1::GetModelInfoResponse model_;
  std::optional<Workload> workload_;
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
  return LoadTest(options, &environment).Run();
}

}  // namespace berth::cli
