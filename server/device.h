// The server's side of the device: chooses it at the start, warms it up, and ends the process when it is lost.
#ifndef BERTH_SERVER_DEVICE_H_
#define BERTH_SERVER_DEVICE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/storage.h"
#include "models/device_choice.h"
#include "models/loader.h"
#include "models/model_runner.h"
#include "scheduler/load/step_progress.h"
#include "server/config.h"

namespace berth {

// Chooses what --device asks for, logs what it is, and completes `config` for it. From then on config->model.device is
// "cpu" or "cuda". Call it before other threads run. FAILED_PRECONDITION: the GPU cannot be used. RESOURCE_EXHAUSTED:
// it has too little free memory. INVALID_ARGUMENT: the flags contradict each other on this device.
absl::StatusOr<DeviceChoice> SetUpDevice(Config* config);

// The arena's size, for sequences of `max_tokens` tokens, with the weights loaded, or as if a dry run's were.
absl::StatusOr<int64_t> SizeArena(const Config& config, const LoadedModel& model, int64_t max_tokens);

// Runs the largest steps on a GPU, where a step that does not fit would fail under load. Does nothing on the CPU: its
// memory is not the arena's alone, and a step there needs no code loaded. Call it on the engine's thread; a watchdog of
// `progress` then looks at that thread.
absl::Status WarmUpDevice(const Config& config, const LoadedModel& model, int64_t max_tokens, ArenaStorage* storage,
                          ModelRunner* runner, StepProgress* progress);

// Logs one line and ends the process with kDeviceLostExitCode, without destructors: their calls of CUDA would fail too.
// For Engine::Options::on_device_lost.
[[noreturn]] void EndOnLostDevice(const absl::Status& status);

}  // namespace berth

#endif  // BERTH_SERVER_DEVICE_H_
