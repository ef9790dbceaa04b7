// The composition root: configuration -> model -> arena -> server, and the wait for a signal.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "models/loader.h"
#include "server/api/model_text.h"
#include "server/capacity.h"
#include "server/config.h"
#include "server/logging.h"
#include "server/server.h"
#include "server/shutdown_signal.h"
#include "server/storage/model_fingerprint.h"
#include "server/storage/packed_file.h"
#include "server/units.h"
#include "server/version.h"

namespace berth {
namespace {

// How often the health service hears of the engine.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(200);

void LogModel(const LoadedModel& model, const TextCodec* text, absl::Duration elapsed) {
  const ModelInfo& info = model.info();
  spdlog::info("model {}: {}, {} layers, {} parameters, {} of weights for {} on {}, {} in {:.1f} s", info.name,
               info.model_type, info.num_layers, info.num_parameters, FormatByteSize(info.weight_bytes),
               std::string(DTypeName(info.dtype)), info.device, info.weights_were_packed ? "mapped" : "packed",
               absl::ToDoubleSeconds(elapsed));
  if (!info.device_kernels.empty()) {
    spdlog::info("kernels on {}: {}; no test has run them on a GPU", info.device, info.device_kernels);
  }
  if (!info.missing_kernels.empty()) {
    spdlog::warn("kernels on {}: none ({}); ATen's reference operations compute instead, far slower", info.device,
                 info.missing_kernels);
  }
  if (text == nullptr) {
    spdlog::info("text: no tokenizer.json; requests carry token ids");
  } else {
    spdlog::info("text: tokenizer.json, {}", text->has_chat_template() ? "chat template" : "no chat template");
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
  const int64_t accepted = server.max_sequence_tokens();
  spdlog::info("limits: {} tokens per sequence, {} running, {} waiting, {} tokens per step, {} of one prompt", accepted,
               config.max_running, config.max_queue, config.max_step_tokens, config.prefill_chunk_tokens);
  if (server.max_encoder_tokens() > 0) {
    spdlog::info("the encoder reads prompts of at most {} tokens, each in one step", server.max_encoder_tokens());
  }
  if (config.max_sequence_tokens == 0 && model.max_positions > wanted) {
    spdlog::info("the model allows {} tokens; set --max_sequence_tokens for more than {}", model.max_positions, wanted);
  }
  if (model.max_positions > 0 && wanted > model.max_positions) {
    spdlog::warn("--max_sequence_tokens={} is more than the {} positions that the model names", wanted,
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
  file << "{\"grpc\": " << server.port() << ", \"metrics\": " << server.metrics_port() << "}\n";
  file.close();
  if (file.fail() || std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--port_file: cannot write ", path));
  }
  return absl::OkStatus();
}

// Says where the server listens, and whom it trusts.
absl::Status Announce(const Config& config, const Server& server) {
  Address address = *ParseAddress(config.listen);
  address.port = server.port();
  if (!address.IsLoopback()) {
    spdlog::warn("{} is open to the network, without encryption and without authentication", address.ToString());
  }
  if (server.metrics_port() != 0) {
    Address metrics = *ParseAddress(config.metrics_listen);
    metrics.port = server.metrics_port();
    spdlog::info("metrics on http://{}/metrics", metrics.ToString());
  }
  spdlog::info("listening on {}", address.ToString());
  return config.port_file.empty() ? absl::OkStatus() : WritePortFile(config.port_file, server);
}

void ServeUntilSignal(const Config& config, Server* server) {
  while (!ShutdownSignal::Wait(kHealthInterval)) server->UpdateHealth();
  spdlog::info("draining: requests have {} to end; a second signal ends at once",
               absl::FormatDuration(config.drain_grace));
  server->Drain(config.drain_grace);
  spdlog::info("stopped");
}

// In words, for the fingerprint.
std::string WhatTheFlagsChange(const Config& config, const ModelInfo& info) {
  std::string text(DTypeName(info.dtype));
  if (config.weights != "auto") absl::StrAppend(&text, ", matrices in ", config.weights);
  if (config.attention_window > 0) {
    absl::StrAppend(&text, ", window ", config.attention_window, ", sinks ", config.sink_tokens);
  }
  return text;
}

absl::Status Run(const Config& config) {
  const absl::Time start = absl::Now();
  if (const char* named = std::getenv("BERTH_CPU_CAPABILITY"); named != nullptr && CpuCapability() != named) {
    return absl::InvalidArgumentError(
        absl::StrCat("BERTH_CPU_CAPABILITY: this processor does not have '", named,
                     "'; one of amx, avx512_bf16, avx512, avx2, baseline, or unset for the best that it has"));
  }
  spdlog::info("berth-server {}, LibTorch {}, {} kernels", kVersion, LibtorchVersion(), CpuCapability());
  // What is wrong with the checkpoint, Load says.
  const PackedFile packed = ChoosePackedFile(config, CpuCapability()).value_or(PackedFile());
  absl::StatusOr<std::unique_ptr<LoadedModel>> model =
      LoadedModel::Load({.model_dir = config.model_dir,
                         .name = config.model_name,
                         .dtype = config.dtype,
                         .weights = config.weights,
                         .device = config.device,
                         .cuda_graphs = config.cuda_graphs,
                         .num_threads = static_cast<int>(config.num_threads),
                         .packed_file = packed.path,
                         .packed_identity = packed.identity,
                         .on_packed_file = [path = packed.path](const absl::Status& s) { LogPackedFile(path, s); },
                         .block_tokens = config.block_tokens,
                         .attention_window = config.attention_window,
                         .sink_tokens = config.sink_tokens,
                         .cache_dtype = config.cache_dtype,
                         .cache_residual_tokens = config.cache_residual_tokens,
                         .chunk_invariant_scans = config.chunk_invariant_scans,
                         .state_checkpoint_dtype = config.state_checkpoint_dtype});
  if (!model.ok()) return model.status();
  const absl::StatusOr<std::unique_ptr<ModelText>> text = ModelText::Load(config.model_dir);
  if (!text.ok()) return text.status();
  LogModel(**model, text->get(), absl::Now() - start);

  const ModelInfo& info = (*model)->info();
  if (config.arena_bytes == 0 && config.device != "cpu") {
    return absl::FailedPreconditionError(
        absl::StrCat("--arena: auto knows the host's memory only; set a size for --device=", config.device));
  }
  const int64_t max_tokens = MaxSequenceTokens(config, info);
  if (info.position_limit > 0 && max_tokens > info.position_limit) {
    return absl::FailedPreconditionError(absl::StrCat("--max_sequence_tokens: ", max_tokens, " is over the ",
                                                      info.position_limit,
                                                      " positions that the model has weights for"));
  }
  const absl::StatusOr<int64_t> arena_bytes =
      ChooseArenaBytes(config, (*model)->cache_plan(), max_tokens, AvailableMemory());
  if (!arena_bytes.ok()) return arena_bytes.status();
  absl::StatusOr<std::unique_ptr<ArenaStorage>> storage = (*model)->CreateStorage(*arena_bytes);
  if (!storage.ok()) return storage.status();
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = (*model)->CreateRunner(storage->get());
  if (!runner.ok()) return runner.status();

  absl::StatusOr<std::string> fingerprint = std::string();
  if (!config.session_dir.empty() || !config.disk_tier.empty()) {
    fingerprint = ModelFingerprint(config.model_dir, WhatTheFlagsChange(config, info));
  }
  if (!fingerprint.ok()) return fingerprint.status();

  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(config, {.plan = (*model)->cache_plan(),
                                                                          .defaults = (*model)->generation_defaults(),
                                                                          .max_sequence_tokens = max_tokens,
                                                                          .storage = storage->get(),
                                                                          .runner = runner->get(),
                                                                          .text = text->get(),
                                                                          .libtorch_version = LibtorchVersion(),
                                                                          .cpu_capability = CpuCapability(),
                                                                          .model_fingerprint = *fingerprint});
  if (!server.ok()) return server.status();
  const int64_t accepted = (*server)->max_sequence_tokens();
  for (const std::string& line : DescribeCache((*model)->cache_plan(), *arena_bytes, accepted, config)) {
    spdlog::info("{}", line);
  }
  LogLimits(config, info, max_tokens, **server);
  if (absl::Status s = ShutdownSignal::Install(); !s.ok()) return s;
  if (absl::Status s = Announce(config, **server); !s.ok()) return s;
  ServeUntilSignal(config, server->get());
  return absl::OkStatus();
}

// The README's table.
void PrintModels() {
  std::printf("| model_type | cache kinds |\n|---|---|\n");
  for (const auto& [type, kinds] : SupportedModelTypes()) std::printf("| %s | %s |\n", type.c_str(), kinds.c_str());
}

int Main(int argc, char** argv) {
  if (argc == 2 && absl::string_view(argv[1]) == "--list_models") {
    PrintModels();
    return 0;
  }
  const absl::StatusOr<Config> config = ParseCommandLine(argc, argv);
  absl::Status status = config.status();
  if (status.ok()) {
    SetUpLogging(config->log_level, config->log_format);
    status = Run(*config);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "berth-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::Main(argc, argv); }
