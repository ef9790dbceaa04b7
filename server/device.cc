#include "server/device.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/steady_clock.h"
#include "flags/units.h"
#include "models/warm_up.h"
#include "scheduler/request.h"
#include "server/capacity.h"
#include "server/process/crash_file.h"
#include "server/process/exit_codes.h"

namespace berth {

absl::StatusOr<DeviceChoice> SetUpDevice(Config* config) {
  const std::string asked = config->model.device;
  absl::StatusOr<DeviceChoice> choice = ChooseDevice(asked);
  if (!choice.ok()) return choice.status();
  config->model.device = choice->device;
  config->model.on_graph_refusal = [](const std::string& why) {
    spdlog::warn("CUDA graphs: refused, so every step is launched kernel by kernel: {}", why);
  };
  if (choice->on_gpu()) {
    spdlog::info("device {}: {}; {} free", asked, choice->gpu, FormatByteSize(choice->memory.free_bytes));
  } else if (!choice->gpu_refused.empty()) {
    spdlog::warn("device auto: the CPU, because no GPU can be used: {}", choice->gpu_refused);
  }
  SetDeviceDefaults(choice->on_gpu(), config);
  if (absl::Status s = Validate(*config); !s.ok()) return s;
  if (choice->on_gpu()) {
    if (absl::Status s = CheckFreeGpuMemory(*config, choice->memory); !s.ok()) return s;
  }
  return choice;
}

absl::StatusOr<int64_t> SizeArena(const Config& config, const LoadedModel& model, int64_t max_tokens) {
  const int64_t limit = model.info().position_limit;
  if (limit > 0 && max_tokens > limit) {
    return absl::FailedPreconditionError(absl::StrCat("--max_sequence_tokens: ", max_tokens, " is more than the ",
                                                      limit, " positions that the model has weights for"));
  }
  const int64_t missing = model.info().missing_bytes;
  if (config.model.device == "cpu") {
    const int64_t available = AvailableMemory();  // 0: unknown
    return ChooseArenaBytes(config, model.cache_plan(), max_tokens,
                            available == 0 ? 0 : std::max<int64_t>(1, available - missing));
  }
  if (absl::Status s = model.ReturnFreeMemory(); !s.ok()) return s;
  absl::StatusOr<DeviceMemory> memory = model.device_memory();
  if (!memory.ok()) return memory.status();
  memory->free_bytes -= missing;
  return ChooseGpuArenaBytes(config, model.cache_plan(), max_tokens, *memory);
}

absl::Status WarmUpDevice(const Config& config, const LoadedModel& model, int64_t max_tokens, ArenaStorage* storage,
                          ModelRunner* runner, StepProgress* progress) {
  progress->SetThread();
  if (config.model.device == "cpu") return absl::OkStatus();
  const absl::Time start = SteadyNow();
  const Scheduler::Options& scheduler = config.engine.scheduler;
  const absl::StatusOr<WarmUpCounts> counts = WarmUp(model.cache_plan(), storage, runner,
                                                     {.max_running = scheduler.max_running,
                                                      .max_step_tokens = scheduler.max_step_tokens,
                                                      .prefill_chunk_tokens = scheduler.prefill_chunk_tokens,
                                                      .max_sequence_tokens = max_tokens,
                                                      .max_drafts = kMaxDraftTokens,
                                                      .graphs = config.model.cuda_graphs});
  if (absl::IsDataLoss(counts.status())) EndOnLostDevice(counts.status());
  if (!counts.ok()) return counts.status();
  spdlog::info("warm-up: a prefill of {} tokens, a decode of {} rows, {} drafts, {} CUDA graphs, in {:.1f} s",
               counts->prefill_tokens, counts->decode_rows, counts->draft_tokens, counts->graphs,
               absl::ToDoubleSeconds(SteadyNow() - start));
  const absl::StatusOr<DeviceMemory> memory = model.device_memory();
  if (memory.ok()) spdlog::info("GPU memory: {} free after the warm-up", FormatByteSize(memory->free_bytes));
  return absl::OkStatus();
}

void EndOnLostDevice(const absl::Status& status) {
  CrashFile::Write();
  spdlog::critical("the device is lost, so the server ends with exit code {}: {}", kDeviceLostExitCode,
                   std::string(status.message()));
  spdlog::default_logger_raw()->flush();
  std::_Exit(kDeviceLostExitCode);
}

}  // namespace berth
