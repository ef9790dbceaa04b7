// The program: settings -> model -> arena -> Server (which builds the rest), and the wait for a signal.
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/steady_clock.h"
#include "flags/units.h"
#include "models/loader.h"
#include "scheduler/load/step_progress.h"
#include "server/access.h"
#include "server/capacity.h"
#include "server/config.h"
#include "server/demo_model.h"
#include "server/device.h"
#include "server/dry_run.h"
#include "server/process/crash_file.h"
#include "server/process/exit_codes.h"
#include "server/process/fault_trace.h"
#include "server/process/logging.h"
#include "server/process/process_signals.h"
#include "server/process/watchdog.h"
#include "server/request/model_grammar.h"
#include "server/request/model_text.h"
#include "server/server.h"
#include "server/storage/model_fingerprint.h"
#include "server/storage/packed_file.h"
#include "server/version.h"
#include "text/chat_template.h"
#include "text/sandbox.h"

namespace berth {
namespace {

struct CommandLine {
  int argc = 0;
  char** argv = nullptr;
};

// How often the health service is told whether the engine works, and files are looked at for changes.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(200);

void LogModel(const LoadedModel& model, const ModelText* text, absl::Duration elapsed) {
  const ModelInfo& info = model.info();
  spdlog::info("model {}: {}, {} layers, {} parameters, {} of weights for {} on {}, {} in {:.1f} s", info.name,
               info.model_type, info.num_layers, info.num_parameters, FormatByteSize(info.weight_bytes),
               std::string(DTypeName(info.dtype)), info.device, info.weights_were_packed ? "mapped" : "packed",
               absl::ToDoubleSeconds(elapsed));
  if (!info.device_kernels.empty()) spdlog::info("kernels on {}: {}", info.device, info.device_kernels);
  if (!info.missing_kernels.empty()) {
    spdlog::warn("kernels on {}: none ({}); ATen's operations replace them and are much slower", info.device,
                 info.missing_kernels);
  }
  if (!info.missing_graphs.empty()) spdlog::warn("CUDA graphs: none ({})", info.missing_graphs);
  for (const std::string& warning : info.warnings) spdlog::warn("{}", warning);
  if (text == nullptr) {
    spdlog::info("text: no tokenizer.json; requests must carry token ids");
  } else {
    spdlog::info("text: tokenizer.json, {}", text->has_chat_template() ? "chat template" : "no chat template");
    for (const std::string& warning : text->warnings()) spdlog::warn("{}", warning);
  }
}

void LogPackedFile(const std::string& path, const absl::Status& status) {
  if (status.ok()) {
    spdlog::info("packed weights: kept for the next start in {}", path);
  } else {
    spdlog::info("packed weights: not kept for the next start: {}", std::string(status.message()));
  }
}

void LogLimits(const Config& config, const ModelInfo& model, int64_t wanted, const Server& server) {
  const Scheduler::Options& scheduler = config.engine.scheduler;
  const int64_t accepted = server.max_sequence_tokens();
  spdlog::info(
      "limits: {} tokens per sequence, {} running sequences, {} waiting requests, {} tokens per step, {} "
      "tokens per prefill chunk",
      accepted, scheduler.max_running, config.engine.max_queue, scheduler.max_step_tokens,
      scheduler.prefill_chunk_tokens);
  if (server.max_encoder_tokens() > 0) {
    spdlog::info("encoder: prompts of at most {} tokens, each computed in one step", server.max_encoder_tokens());
  }
  if (scheduler.max_sequence_tokens == 0 && model.max_positions > wanted) {
    spdlog::info("the model allows {} tokens per sequence; set --max_sequence_tokens to accept more than {}",
                 model.max_positions, wanted);
  }
  if (model.max_positions > 0 && wanted > model.max_positions) {
    spdlog::warn("--max_sequence_tokens={} is more than the {} positions in the model's configuration", wanted,
                 model.max_positions);
  }
  if (accepted < wanted) {
    spdlog::warn("the arena holds sequences of at most {} tokens, not {}; raise --arena", accepted, wanted);
  }
}

// Written beside and renamed, so that a reader finds all of it or nothing.
absl::Status WritePortFile(const std::string& path, const Server& server) {
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::trunc);
  const Listeners& listeners = server.listeners();
  file << "{\"grpc\": " << listeners.listen().port << ", \"metrics\": " << server.metrics_port()
       << ", \"gateway\": " << listeners.gateway().port << ", \"health\": " << listeners.health().port << "}\n";
  file.close();
  if (file.fail() || std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--port_file: cannot write ", path));
  }
  return absl::OkStatus();
}

// Says where the server listens, and whom it trusts.
absl::Status Announce(const Config& config, const Server& server) {
  const std::shared_ptr<const Tenants> tenants = server.tenants()->current();
  for (const std::string& line : DescribeOpenings(config, tenants->credentials())) spdlog::warn("{}", line);
  if (server.metrics_port() != 0) {
    const Address metrics = {config.metrics_listen->host, server.metrics_port()};
    spdlog::info("metrics on http://{}/metrics", metrics.ToString());
  }
  const Listeners& listeners = server.listeners();
  if (config.gateway_listen) {
    spdlog::info("gateway of the tenant \"{}\" on {}: plaintext; callers need no credential",
                 absl::Utf8SafeCEscape(config.gateway_tenant), listeners.gateway().ToString());
  }
  if (config.health_listen) spdlog::info("health alone on {}: plaintext", listeners.health().ToString());
  spdlog::info("listening on {}: {}", listeners.listen().ToString(), DescribeAccess(config, tenants->credentials()));
  return config.port_file.empty() ? absl::OkStatus() : WritePortFile(config.port_file, server);
}

// Reads again what can change while the server runs: the log level from the flags and flag files, and the tenants'
// file. What is wrong leaves the former setting.
void Reload(const CommandLine& command_line, Server* server) {
  const absl::StatusOr<Config> config = ParseCommandLine(command_line.argc, command_line.argv);
  if (config.ok()) {
    SetLogLevel(config->log_level);
    spdlog::info("reload: --log_level={}; other flags take effect at the next start", config->log_level);
  } else {
    spdlog::error("reload: {}; the former log level stays", std::string(config.status().message()));
  }
  // It logs its errors itself.
  [[maybe_unused]] const absl::Status tenants = server->tenants()->Reload();
}

void ServeUntilSignal(const Config& config, const CommandLine& command_line, Server* server) {
  while (!server->draining()) {
    const ProcessSignals::Event event = ProcessSignals::Wait(kHealthInterval);
    if (event == ProcessSignals::Event::kStop) break;
    if (event == ProcessSignals::Event::kReload) Reload(command_line, server);
    server->UpdateHealth();
    server->ReloadChangedFiles();
  }
  spdlog::info("draining: requests have {} to finish; a second signal ends them at once",
               absl::FormatDuration(config.drain_grace));
  server->Drain(config.drain_grace);
  spdlog::info("stopped");
}

// Lets the process have as many descriptors as it may: each connection takes one.
void RaiseDescriptorLimit(int64_t max_connections) {
  constexpr int64_t kOtherFiles = 256;  // of model, sessions, tiers, metrics and log
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < static_cast<rlim_t>(max_connections + kOtherFiles)) {
    spdlog::warn("--max_connections={}, but the process may open {} files only (ulimit -Hn)", max_connections,
                 limit.rlim_max);
  }
}

// What the flags change of the model's output, for its fingerprint.
std::string OutputAffectingSettings(const LoadOptions& options, const ModelInfo& info) {
  std::string text(DTypeName(info.dtype));
  if (options.weights != "auto") absl::StrAppend(&text, ", matrices in ", options.weights);
  if (options.attention_window > 0) {
    absl::StrAppend(&text, ", window ", options.attention_window, ", sinks ", options.sink_tokens);
  }
  if (options.cache_dtype != "auto") absl::StrAppend(&text, ", keys and values in ", options.cache_dtype);
  if (options.cache_dtype == "int4") absl::StrAppend(&text, ", the newest ", options.cache_residual_tokens, " whole");
  if (options.state_checkpoint_dtype != "auto") {
    absl::StrAppend(&text, ", state checkpoints in ", options.state_checkpoint_dtype);
  }
  if (options.chunk_invariant_scans) absl::StrAppend(&text, ", chunk-invariant scans");
  return text;
}

absl::Status CheckEnvironment() {
  const char* const named = std::getenv("BERTH_CPU_CAPABILITY");
  if (named == nullptr || CpuCapability() == named) return absl::OkStatus();
  std::vector<std::string> runnable;
  for (const CpuKernelSet& set : CpuKernelSets()) {
    if (set.missing.empty()) runnable.push_back(set.name);
    if (set.name == named) {
      return absl::InvalidArgumentError(
          absl::StrCat("BERTH_CPU_CAPABILITY: this processor does not run ", named, "; it lacks ", set.missing));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("BERTH_CPU_CAPABILITY: there are no kernels \"", absl::CEscape(named),
                                                 "\"; this processor runs ", absl::StrJoin(runnable, ", ")));
}

// Why this set of kernels runs: "the fastest set that this processor runs; avx512_bf16 needs AVX512_BF16".
std::string ReasonForKernels() {
  if (std::getenv("BERTH_CPU_CAPABILITY") != nullptr) return "set by BERTH_CPU_CAPABILITY";
  std::string needed;
  for (const CpuKernelSet& set : CpuKernelSets()) {
    if (set.name == CpuCapability()) break;
    needed = absl::StrCat("; ", set.name, set.missing.empty() ? " is slower" : " needs ", set.missing);  // of the last
  }
  return absl::StrCat("the fastest set that this processor runs", needed);
}

void PrintKernels() {
  bool is_slower = std::getenv("BERTH_CPU_CAPABILITY") == nullptr;  // what comes before the chosen set
  for (const CpuKernelSet& set : CpuKernelSets()) {
    const bool is_chosen = set.name == CpuCapability();
    is_slower = is_slower && !is_chosen;
    const std::string lacks = absl::StrCat("the processor lacks ", set.missing);
    const std::string others = is_slower ? "runs here too, but slower" : "runs here too";
    const std::string runs = is_chosen ? ReasonForKernels() : others;
    std::printf("%c %-12s %s\n", is_chosen ? '*' : ' ', set.name.c_str(),
                set.missing.empty() ? runs.c_str() : lacks.c_str());
  }
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const Config& config) {
  LoadOptions options = config.model;
  // What is wrong with the checkpoint, Load says.
  PackedFile packed = ChoosePackedFile(options, config.packed_weights, CpuCapability()).value_or(PackedFile());
  options.on_packed_file = [path = packed.path](const absl::Status& s) { LogPackedFile(path, s); };
  options.packed_file = std::move(packed.path);
  options.packed_identity = std::move(packed.identity);
  return LoadedModel::Load(options);
}

// Identifies the model in the files of sessions and of the disk tier; "": there are none.
absl::StatusOr<std::string> Fingerprint(const Config& config, const ModelInfo& info) {
  if (config.sessions.folder.empty() && config.disk_tier.folder.empty()) return std::string();
  return ModelFingerprint(config.model.model_dir, OutputAffectingSettings(config.model, info));
}

// Watches the calling thread, which starts the server, until it is destroyed. Each Enter on `progress` is progress.
std::unique_ptr<Watchdog> WatchStart(absl::Duration timeout, const std::shared_ptr<StepProgress>& progress) {
  progress->SetThread();
  progress->Enter(StepPhase::kStart);
  auto watchdog = std::make_unique<Watchdog>(
      Watchdog::Options{.timeout = timeout, .what = "the start", .flag = "--start_timeout"}, progress);
  watchdog->Start();
  return watchdog;
}

// Where --model is not set, chooses the demo model and says so.
absl::Status ChooseModel(Config* config) {
  if (!config->model.model_dir.empty()) return absl::OkStatus();
  std::error_code error;
  const absl::StatusOr<std::string> demo =
      FindDemoModel(std::filesystem::read_symlink("/proc/self/exe", error).string());
  if (!demo.ok()) return demo.status();
  spdlog::info("--model is not set; serving the demo model in {}", *demo);
  config->model.model_dir = *demo;
  return absl::OkStatus();
}

// Adds the texts and structured outputs of a model with a tokenizer.
void AddText(const ModelText& text, const ModelInfo& info, Server::Parts* parts) {
  parts->text = &text;
  absl::Status status;
  parts->compile_grammar = CompileFor(text.tokenizer(), info.vocab_size, info.eos_token_ids, &status);
  if (!status.ok()) spdlog::warn("structured output does not work: {}", status.ToString());
}

absl::Status InstallCrashFile(const Config& config, const Server& server) {
  return config.crash_dir.empty() ? absl::OkStatus() : CrashFile::Install(config.crash_dir, &server.recorder());
}

absl::Status PrintDryRun(const Config& config, const Sandbox& sandbox) {
  if (absl::Status s = ModelText::Load(config.model.model_dir, &sandbox).status(); !s.ok()) return s;
  return DryRun(config, std::cout);
}

absl::Status Run(Config config, const CommandLine& command_line, const Sandbox& sandbox) {
  const absl::Time start = SteadyNow();
  if (absl::Status s = CheckEnvironment(); !s.ok()) return s;
  // The server reads them again. Here, what is wrong is told before the model is loaded.
  if (absl::Status s = OpenAccessFiles(config).status(); !s.ok()) return s;
  spdlog::info("berth-server {}, LibTorch {}, {} kernels ({})", kVersion, LibtorchVersion(), CpuCapability(),
               ReasonForKernels());
  if (absl::Status s = ChooseModel(&config); !s.ok()) return s;
  if (config.model.dry_run) return PrintDryRun(config, sandbox);
  if (absl::Status s = SetUpDevice(&config).status(); !s.ok()) return s;
  config.engine.on_device_lost = EndOnLostDevice;
  const auto progress = std::make_shared<StepProgress>();
  std::unique_ptr<Watchdog> watchdog = WatchStart(config.start_timeout, progress);
  const absl::StatusOr<std::unique_ptr<LoadedModel>> model = LoadModel(config);
  if (!model.ok()) return model.status();
  const absl::StatusOr<std::unique_ptr<ModelText>> text = ModelText::Load(config.model.model_dir, &sandbox);
  if (!text.ok()) return text.status();
  LogModel(**model, text->get(), SteadyNow() - start);
  progress->Enter(StepPhase::kStart);

  const ModelInfo& info = (*model)->info();
  const CachePlan& plan = (*model)->cache_plan();
  SetEncoderDefaults(plan, info, &config);
  const int64_t max_tokens = MaxSequenceTokens(config.engine.scheduler, info);
  const absl::StatusOr<int64_t> arena_bytes = SizeArena(config, **model, max_tokens);
  if (!arena_bytes.ok()) return arena_bytes.status();
  const absl::StatusOr<std::unique_ptr<ArenaStorage>> storage = (*model)->CreateStorage(*arena_bytes);
  if (!storage.ok()) return storage.status();
  const absl::StatusOr<std::unique_ptr<ModelRunner>> runner = (*model)->CreateRunner(
      storage->get(), {.rows = config.engine.scheduler.max_running, .sequence_tokens = max_tokens});
  if (!runner.ok()) return runner.status();
  absl::StatusOr<std::string> fingerprint = Fingerprint(config, info);
  if (!fingerprint.ok()) return fingerprint.status();

  Server::Parts parts = {
      .plan = plan,
      .defaults = (*model)->generation_defaults(),
      .max_sequence_tokens = max_tokens,
      .storage = storage->get(),
      .runner = runner->get(),
      .warm_up =
          [&] { return WarmUpDevice(config, **model, max_tokens, storage->get(), runner->get(), progress.get()); },
      .libtorch_version = LibtorchVersion(),
      .cpu_capability = CpuCapability(),
      .model_fingerprint = *std::move(fingerprint)};
  if (*text != nullptr) AddText(**text, info, &parts);
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(config, std::move(parts));
  if (!server.ok()) return server.status();
  progress->SetThread();
  const int64_t accepted = (*server)->max_sequence_tokens();
  for (const std::string& line : DescribeCache(plan, *arena_bytes, accepted, config.engine.scheduler)) {
    spdlog::info("{}", line);
  }
  LogLimits(config, info, max_tokens, **server);
  if (absl::Status s = ProcessSignals::KeepStops(); !s.ok()) return s;
  RaiseDescriptorLimit(config.connections.max_connections);
  if (absl::Status s = InstallCrashFile(config, **server); !s.ok()) return s;
  if (absl::Status s = Announce(config, **server); !s.ok()) return s;
  watchdog.reset();
  ServeUntilSignal(config, command_line, server->get());
  CrashFile::Forget();
  return absl::OkStatus();
}

// The README's table.
void PrintModels() {
  std::printf("| model_type | cache kinds |\n|---|---|\n");
  for (const auto& [type, kinds] : SupportedModelTypes()) std::printf("| %s | %s |\n", type.c_str(), kinds.c_str());
}

// Runs the server. An exception of a library becomes a status, above all that memory is short.
absl::Status RunAndCatch(const Config& config, const CommandLine& command_line, const Sandbox& sandbox) {
  try {
    return Run(config, command_line, sandbox);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is not enough memory to start");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the start failed: ", error.what()));
  }
}

int Main(int argc, char** argv) {
  absl::InitializeSymbolizer(argv[0]);
  const absl::StatusOr<Config> config = ParseCommandLine(argc, argv);
  if (config.ok() && !config->printed.empty()) {
    std::fputs(config->printed.c_str(), stdout);
    return 0;
  }
  if (config.ok() && config->list_models) {
    PrintModels();
    return 0;
  }
  if (config.ok() && config->list_kernels) {
    const absl::Status named = CheckEnvironment();
    if (named.ok()) PrintKernels();
    if (!named.ok()) std::fprintf(stderr, "berth-server: %s\n", std::string(named.message()).c_str());
    return named.ok() ? 0 : kFailedStartExitCode;
  }
  absl::Status status = config.status();
  if (status.ok()) {
    // First of all, while the process has one thread. A template that uses up its worker's stack prints nothing.
    const absl::StatusOr<std::unique_ptr<Sandbox>> sandbox = Sandbox::Start({.function = ChatTemplate::RunInSandbox});
    PrintStackOnFault();
    SetUpLogging(config->log_level, config->log_format);
    status = sandbox.ok() ? ProcessSignals::KeepReloads() : sandbox.status();
    if (status.ok()) status = SetUpAuditLog(config->audit_log, config->log_format);
    if (status.ok()) status = RunAndCatch(*config, {.argc = argc, .argv = argv}, **sandbox);
  }
  if (status.ok()) return kStoppedExitCode;
  std::fprintf(stderr, "berth-server: %s\n", std::string(status.message()).c_str());
  return kFailedStartExitCode;
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::Main(argc, argv); }
