// The interface between the scheduler and the models: runs one step on the device. No torch here, so that the scheduler
// and its tests build without it. Engine thread only.
#ifndef BERTH_MODELS_MODEL_RUNNER_H_
#define BERTH_MODELS_MODEL_RUNNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache/spec.h"
#include "models/step.h"

namespace berth {

// What a loaded model is. Constant after load.
struct ModelInfo {
  std::string name;                        // what clients call it: the folder's name unless told otherwise
  std::string model_type;                  // of config.json
  std::vector<std::string> architectures;  // of config.json
  int64_t vocab_size = 0;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;          // as they are kept: quantised, packed
  int64_t missing_bytes = 0;         // of weight_bytes, what a dry run did not load
  bool weights_were_packed = false;  // the matrices came from a file that an earlier start wrote
  int64_t max_positions = 0;         // the model's own limit of positions; 0: none said
  int64_t position_limit = 0;        // positions that it has weights for; no longer sequence can run. 0: no limit.
  // The length past which the model computes all of a sequence's tokens differently (phi3's longrope). The cache of a
  // sequence that grows past it is computed anew; 0: none.
  int64_t rope_switch_length = 0;
  // The longest sequence that shares prefixes; 0: no limit. In longer ones keys and values also depend on the
  // sequence's length (dynamic and longrope rotations), not only on the tokens before them.
  int64_t max_shareable_tokens = 0;
  std::vector<int32_t> eos_token_ids;
  std::vector<std::string> warnings;  // about the checkpoint's files, for the log
  DType dtype = DType::kFloat32;      // of the weights and activations
  std::string device;                 // "cpu", "cuda"
  // For devices other than the CPU: what the kernels were compiled for; or why there are none, so that ATen's reference
  // operations run.
  std::string device_kernels;
  std::string missing_kernels;
  std::string missing_graphs;  // why no step is launched as a CUDA graph although that was asked for; "": they are
};

// The most that a step may have. On a GPU, memory for the rows and tables of such steps is taken at once. 0: not known,
// and the memory grows with the steps.
struct StepSize {
  int64_t rows = 0;
  int64_t sequence_tokens = 0;  // of a row's sequence
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const ModelInfo& info() const = 0;

  // Computes the plan's tokens, writes their cache, and chooses a token for each row with `sample`. `result->rows` has
  // one entry per row. Blocks until done. On error (INTERNAL, RESOURCE_EXHAUSTED of the device) no row has a result,
  // and the cache of the plan's new tokens is undefined. DATA_LOSS: the device is lost, and no later step can run.
  virtual absl::Status Run(const StepPlan& plan, StepResult* result) = 0;

  // Allocations of device memory since the start. Constant once all sizes of steps were seen, since their tensors reuse
  // memory. 0 on the CPU.
  virtual int64_t num_device_allocations() const { return 0; }

  // Steps that were launched as CUDA graphs.
  virtual int64_t num_graph_launches() const { return 0; }
  // Failed attempts to record one. After the first, steps run without graphs.
  virtual int64_t num_graph_refusals() const { return 0; }
};

}  // namespace berth

#endif  // BERTH_MODELS_MODEL_RUNNER_H_
