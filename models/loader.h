// Loads a checkpoint's folder into a model, and gives what runs it. No torch here: the server sees nothing else of it.
// Load from one thread; what it returns belongs to the engine thread.
#ifndef BERTH_MODELS_LOADER_H_
#define BERTH_MODELS_LOADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/spec.h"
#include "cache/storage.h"
#include "models/generation_config.h"
#include "models/model_runner.h"

namespace berth {

struct LoadOptions {
  std::string model_dir;
  std::string name;            // what clients call it; "": the folder's name
  std::string dtype = "auto";  // auto: as the checkpoint says; float32, bfloat16
  // Of the matrices of dense products: auto (as dtype), int8; on the CPU int4 too.
  std::string weights = "auto";
  std::string device = "cpu";  // cpu, cuda
  bool cuda_graphs = false;    // on CUDA: steps that decode are launched as graphs, see DecodeGraphs
  int num_threads = 0;         // of a step on the CPU; 0: all cores
  // Where the packed matrices are kept for the next start, if they are of `packed_identity` (32 characters that tell
  // all apart that packing depends on; see kernels/packed_weights.h); "": nowhere. On the CPU only. What became of a
  // file that had to be written, a thread says some time after Load.
  std::string packed_file;
  std::string packed_identity;
  std::function<void(const absl::Status&)> on_packed_file = [](const absl::Status&) {};
  int64_t block_tokens = 16;     // tokens per cache block
  int64_t attention_window = 0;  // tokens that a query sees beside the first sink_tokens; 0: the model's own
  int64_t sink_tokens = 4;       // of no effect without attention_window
  // Of keys and values: auto (the model's dtype), int8, int4. Recurrent states and cross-attention's stay in the
  // model's.
  std::string cache_dtype = "auto";
  int64_t cache_residual_tokens = 128;  // of int4: the newest so many are read in full precision; 0: none
  bool chunk_invariant_scans = false;   // see StepBatch::set_scans_in_order
  // Of the recurrent states kept for later sequences: auto (the states' own), int8.
  std::string state_checkpoint_dtype = "auto";
};

class LoadedModel {
 public:
  virtual ~LoadedModel() = default;

  // INVALID_ARGUMENT: the configuration or a tensor is wrong, named; FAILED_PRECONDITION: a file or the device is
  // missing, or the configuration asks for what is not implemented; RESOURCE_EXHAUSTED: no memory for the weights.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const LoadOptions& options);

  virtual const ModelInfo& info() const = 0;
  virtual const CachePlan& cache_plan() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;
  // The arena on the model's device.
  virtual absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateStorage(int64_t size_bytes) const = 0;
  // Runs steps over `storage`. Both this model and `storage` must outlive the runner.
  virtual absl::StatusOr<std::unique_ptr<ModelRunner>> CreateRunner(ArenaStorage* storage) = 0;
};

// Supported model types and, in words, the cache kinds of each.
std::vector<std::pair<std::string, std::string>> SupportedModelTypes();

// The instruction set that the CPU kernels use: "amx", "avx512_bf16", "avx512", "avx2" or "baseline"; the machine's
// best, or what the environment's BERTH_CPU_CAPABILITY names if the machine has it.
std::string CpuCapability();
std::string LibtorchVersion();

}  // namespace berth

#endif  // BERTH_MODELS_LOADER_H_
