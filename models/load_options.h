// How a checkpoint is loaded. It is not in loader.h, so that the server's configuration can hold it without linking
// torch.
#ifndef BERTH_MODELS_LOAD_OPTIONS_H_
#define BERTH_MODELS_LOAD_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace berth {

struct LoadOptions {
  std::string model_dir;         // folder of a Hugging Face checkpoint
  std::string name;              // what clients call the model; "": the folder's name
  std::string dtype = "auto";    // of weights and activations: auto (the checkpoint's), float32, bfloat16
  std::string weights = "auto";  // of the linear-layer weights: auto (same as dtype), int8; on the CPU int4 too
  std::string device = "cpu";    // cpu, cuda: see ChooseDevice in loader.h
  bool cuda_graphs = false;      // on CUDA: launch decode steps as graphs, see DecodeGraphs
  int num_threads = 0;           // of a step on the CPU; 0: AvailableCpus (base/machine.h)
  int64_t block_tokens = 16;     // tokens per cache block: a power of two
  int64_t attention_window = 0;  // newest tokens that a query sees, beside the first sink_tokens; 0: the model's own
  int64_t sink_tokens = 4;       // only with attention_window; 0: none
  std::string cache_dtype = "auto";             // of cached keys and values: auto (the model's), int8, int4
  int64_t cache_residual_tokens = 128;          // of an int4 cache: newest tokens read in full precision; 0: none
  std::string state_checkpoint_dtype = "auto";  // of the recurrent states kept for later sequences: auto, int8
  bool chunk_invariant_scans = false;           // sum recurrences token by token in prefill too; see StepBatch

  // Builds the model without its matrices, to see what it takes: see ModelInfo::missing_bytes. It cannot run.
  bool dry_run = false;

  // The file that keeps the packed matrices for the next start; "": none. CPU only. It is used if it was written with
  // the same `packed_identity`: 32 characters that identify everything packing depends on (see packed_weights.h).
  std::string packed_file;
  std::string packed_identity;
  // Called from another thread, some time after Load, when a new file was written or could not be.
  std::function<void(const absl::Status&)> on_packed_file = [](const absl::Status&) {};
  // Called while a step runs, at most once, when a step could not be recorded as a CUDA graph; `why` is the error.
  std::function<void(const std::string& why)> on_graph_refusal = [](const std::string&) {};
};

}  // namespace berth

#endif  // BERTH_MODELS_LOAD_OPTIONS_H_
