// The server's configuration: one flat struct, filled from flags (and --flagfile), checked before anything starts. No
// other file knows of flags, and no environment variable is read. Thread-compatible.
//
// To add a flag: 1. a field below, with meaning, default and what 0 means; 2. its ABSL_FLAG, its line in FromFlags and
// its place in kHelpGroups in config.cc; 3. its limits in Validate; 4. rows in tests/server/config_test.cc.
#ifndef BERTH_SERVER_CONFIG_H_
#define BERTH_SERVER_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace berth {

struct Config {
  // The model.
  std::string model_dir;       // --model: folder of a Hugging Face checkpoint; required
  std::string model_name;      // what clients call it; "": the folder's name
  std::string dtype = "auto";  // of weights and activations: auto (what the checkpoint says), float32, bfloat16
  // Of the matrices of dense products: auto (as --dtype says), int8, int4. The output head is int8 with either.
  std::string weights = "auto";
  // Where the matrices are kept as the CPU's kernels take them, so that the next start need not pack them: auto (in the
  // folder .berth of the checkpoint's), none, or another folder.
  std::string packed_weights = "auto";
  // Sum the recurrences of Mamba-2 and the gated delta net token by token in prefill too: no bit of a logit then
  // depends on the chunks that a prompt is cut into, as with all other architectures.
  bool chunk_invariant_scans = false;
  std::string device = "cpu";  // cpu, cuda
  bool cuda_graphs = false;    // launch steps that decode as CUDA graphs
  int64_t num_threads = 0;     // --threads: of the model's kernels; 0: one for each core

  // Addresses.
  std::string listen = "127.0.0.1:8600";          // gRPC; port 0: any free one
  std::string metrics_listen = "127.0.0.1:8601";  // Prometheus scrapes; "": off
  std::string metrics_compat = "vllm";            // vllm: the same figures under vLLM's names too; none
  std::string port_file;                          // the ports are written there once both listen; "": nowhere

  // The cache.
  int64_t arena_bytes = 0;       // --arena; 0 (auto): a quarter of the available memory, see arena_size.h
  int64_t block_tokens = 16;     // tokens of one KV unit: a power of two
  int64_t attention_window = 0;  // newest tokens that a query sees, where the model would show it more; 0: the model's
  int64_t sink_tokens = 4;       // with attention_window: the sequence's first tokens, which it sees too; 0: none
  std::string cache_dtype = "auto";     // of keys and values: auto (the model's), int8, int4
  int64_t cache_residual_tokens = 128;  // of int4: the newest so many are read in full precision; 0: none
  // Of the recurrent states kept for later sequences: auto (as steps compute with them), int8.
  std::string state_checkpoint_dtype = "auto";
  bool poison_cache = false;     // fill returned units with NaN, so that a stale read shows
  bool check_integrity = false;  // check the cache's invariants after every step and crash when one is broken
  bool share_prefixes = true;    // share what the cache still holds of a prompt's beginning
  // Tokens between kept recurrent states: what a hit replays at most; 0: turns' ends only.
  int64_t state_checkpoint_tokens = 512;
  // Cut chunks at fixed positions and share whole ones only: a hit's logits equal a cold run's bit for bit.
  bool aligned_prefill_chunks = false;
  int64_t compact_bytes_per_step = 4 << 20;  // moved at most in one step to gather free memory
  // --host_tier: memory outside the arena for the caches of sequences that give way and for prefixes that the arena
  // drops; 0: those are recomputed. Off by default, because on the CPU the arena makes more of the same memory: who has
  // a place in it need not give way.
  int64_t host_tier_bytes = 0;
  int64_t copy_bytes_per_step = 256 << 20;  // copied at most between arena and host tier in one step
  std::string disk_tier;                    // folder of the prefixes that the host tier drops; "": they are recomputed
  int64_t disk_tier_bytes = int64_t{16} << 30;   // that its files may take
  absl::Duration tier_idle = absl::Seconds(60);  // a prefix that nobody used for so long moves to the tiers; 0: at once
  int64_t crop_every = 0;  // for tests: output tokens after which some cache is dropped and computed again

  // Sessions.
  std::string session_dir;                        // folder of the requests that name a session_id; "": they are refused
  int64_t session_dir_limit = int64_t{16} << 30;  // bytes of its files

  // Limits.
  int64_t max_running = 64;            // sequences that are computed at once
  int64_t max_step_tokens = 512;       // tokens computed in one step
  int64_t prefill_chunk_tokens = 256;  // tokens of one prompt computed in one step
  int64_t max_sequence_tokens = 0;     // prompt + output; 0: the model's own limit, at most 32768
  int64_t max_queue = 256;             // requests that wait; one more is refused
  int64_t default_max_tokens = 1024;   // output of a request that says nothing; 0: what max_sequence_tokens leaves
  int64_t draft_tokens = 0;            // guesses that a step checks for a greedy request that says nothing; 0: none
  int64_t max_logprobs = 20;           // alternatives a request may ask for with each token
  int64_t max_outputs = 16;            // of one request; max_running if that is less
  absl::Duration drain_grace = absl::Seconds(30);  // how long requests may go on after SIGTERM; 0: not at all

  // The log.
  std::string log_level = "info";   // trace, debug, info, warning, error, off
  std::string log_format = "text";  // text, json (one object a line)

  friend bool operator==(const Config&, const Config&) = default;
};

// Reads flags and checks them. --help and --version print and exit 0; a flag that does not exist, or whose value does
// not parse, prints a line and exits 1. INVALID_ARGUMENT naming flag, value and limit for the rest.
absl::StatusOr<Config> ParseCommandLine(int argc, char** argv);

// INVALID_ARGUMENT naming flag, value and limit: values out of range, and combinations that contradict each other.
absl::Status Validate(const Config& config);

// What --help prints.
std::string HelpText();

}  // namespace berth

#endif  // BERTH_SERVER_CONFIG_H_
