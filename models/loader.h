// Loads a checkpoint's folder into a model, and creates its storage and runner. No torch here: the server includes
// nothing else of the models. Load from one thread; what it returns belongs to the engine thread.
#ifndef BERTH_MODELS_LOADER_H_
#define BERTH_MODELS_LOADER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/spec.h"
#include "cache/storage.h"
#include "models/device_choice.h"
#include "models/generation_config.h"
#include "models/load_options.h"
#include "models/model_runner.h"
#include "models/step/execution.h"

namespace berth {

// Chooses the device for LoadOptions: "cpu"; "cuda", the first GPU; "cuda:N"; or "auto", the first GPU if it works,
// else the CPU. FAILED_PRECONDITION: the GPU cannot be used; the message names the cause. Call it once, before other
// threads run.
absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& name);

class LoadedModel {
 public:
  virtual ~LoadedModel() = default;

  // INVALID_ARGUMENT: the configuration or a tensor is wrong; the message names it. FAILED_PRECONDITION: a file or the
  // device is missing, or the configuration asks for something that is not implemented. RESOURCE_EXHAUSTED: there is
  // not enough memory for the weights. After a dry run only info() and cache_plan() may be used, and device_memory();
  // both are those of a load. `prepared` sets what the model runs on where the options do not; tests choose
  // kernels with it.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const LoadOptions& options, const Execution& prepared = {});

  virtual const ModelInfo& info() const = 0;
  virtual const CachePlan& cache_plan() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;
  // The GPU's memory as of now. FAILED_PRECONDITION: the model runs on the CPU.
  virtual absl::StatusOr<DeviceMemory> device_memory() const = 0;
  // Gives memory of the GPU back that the load needed and later steps would keep; see models/runner/device.h. Does
  // nothing on the CPU.
  virtual absl::Status ReturnFreeMemory() const = 0;
  // The arena on the model's device.
  virtual absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateStorage(int64_t size_bytes) const = 0;
  // Runs steps over `storage`. Both this model and `storage` must outlive the runner. `limits`: of its steps.
  virtual absl::StatusOr<std::unique_ptr<ModelRunner>> CreateRunner(ArenaStorage* storage, const StepSize& limits) = 0;
};

// Supported model types and, in words, the cache kinds of each.
std::vector<std::pair<std::string, std::string>> SupportedModelTypes();

// The set of CPU kernels that runs, for example "avx2": the best that the machine runs, or the one that the environment
// variable BERTH_CPU_CAPABILITY names if the machine runs that.
std::string CpuCapability();
// A set of CPU kernels, and the instructions that this machine lacks for it, in words; "": none.
struct CpuKernelSet {
  std::string name;
  std::string missing;
};
// All sets, best first.
std::vector<CpuKernelSet> CpuKernelSets();
std::string LibtorchVersion();

}  // namespace berth

#endif  // BERTH_MODELS_LOADER_H_
