#include "server/config.h"

#include <cstdlib>
#include <iostream>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "scheduler/request.h"
#include "server/units.h"
#include "server/version.h"

using Config = berth::Config;

ABSL_FLAG(std::string, model, "", "Folder of a Hugging Face checkpoint. Required.");
ABSL_FLAG(std::string, model_name, "", "What clients call the model. Empty: the folder's name.");
ABSL_FLAG(std::string, dtype, Config{}.dtype,
          "Of weights and activations: auto (the checkpoint's), float32, bfloat16.");
ABSL_FLAG(
    std::string, weights, Config{}.weights,
    "Of the matrices of dense products: auto (as --dtype says), int8 (a quarter of float32's bytes) or, on the CPU, "
    "int4 (0.14 of them, the output head in int8). Embeddings, norms, convolutions and routers stay as they are.");
ABSL_FLAG(std::string, packed_weights, Config{}.packed_weights,
          "Where the matrices, packed for the CPU's kernels, are kept for the next start: auto (.berth in the "
          "checkpoint's folder), none, or another folder.");
ABSL_FLAG(bool, chunk_invariant_scans, Config{}.chunk_invariant_scans,
          "On the CPU let Mamba-2 and the gated delta net prefill token by token, so that no bit depends on how a "
          "prompt is cut into chunks.");
ABSL_FLAG(std::string, device, Config{}.device, "cpu or cuda.");
ABSL_FLAG(bool, cuda_graphs, Config{}.cuda_graphs,
          "With --device=cuda: steps that decode are launched as CUDA graphs.");
ABSL_FLAG(int64_t, threads, Config{}.num_threads, "Threads of the model's kernels. 0: one for each core.");

ABSL_FLAG(std::string, listen, Config{}.listen, "HOST:PORT of gRPC. Port 0: any free one.");
ABSL_FLAG(std::string, metrics_listen, Config{}.metrics_listen, "HOST:PORT of GET /metrics. Empty: off.");
ABSL_FLAG(std::string, metrics_compat, Config{}.metrics_compat,
          "vllm: the same figures under vLLM's names too; none: only Berth's own.");
ABSL_FLAG(std::string, port_file, Config{}.port_file,
          "File that gets the ports, as {\"grpc\": 8600, \"metrics\": 8601}, once both listen. Empty: none.");

ABSL_FLAG(std::string, arena, "auto",
          "Memory of the cache, as 512MiB or 8GiB. auto: a quarter of what is available (container limits respected), "
          "at most what max_running sequences of max_sequence_tokens fill, at least what one needs.");
ABSL_FLAG(int64_t, block_tokens, Config{}.block_tokens, "Tokens of one block of keys and values: a power of two.");
ABSL_FLAG(bool, share_prefixes, Config{}.share_prefixes,
          "Share the cache of prompts' beginnings. A request may opt out.");
ABSL_FLAG(
    int64_t, state_checkpoint_tokens, Config{}.state_checkpoint_tokens,
    "Keep a prompt's recurrent states every so many tokens, beside the ends of prompts and outputs: what a shared "
    "prefix replays at most. 0: only at ends.");
ABSL_FLAG(
    bool, aligned_prefill_chunks, Config{}.aligned_prefill_chunks,
    "Cut prefill chunks at multiples of prefill_chunk_tokens and share whole ones of prompts only, so that a shared "
    "prefix gives the very bits of a cold run, not only the same tokens.");
ABSL_FLAG(std::string, compact_bytes_per_step, "4MiB",
          "Bytes of the cache moved at most between two steps, to gather free memory before it is needed.");
ABSL_FLAG(
    int64_t, attention_window, Config{}.attention_window,
    "Let a token see the newest so many tokens and the first sink_tokens only (StreamingLLM), so that a stream of "
    "any length takes bounded memory. Layers whose own window is smaller, or of chunks, keep it. 0: as the model "
    "says.");
ABSL_FLAG(int64_t, sink_tokens, Config{}.sink_tokens,
          "With --attention_window: the sequence's first so many tokens stay visible. 0: none.");
ABSL_FLAG(
    std::string, cache_dtype, Config{}.cache_dtype,
    "Of cached keys and values: auto (as the model computes), int8 (about half of bfloat16's bytes) or int4 "
    "(about 0.28). Recurrent states (but see --state_checkpoint_dtype) and cross-attention's keys and values stay as "
    "they are.");
ABSL_FLAG(int64_t, cache_residual_tokens, Config{}.cache_residual_tokens,
          "With --cache_dtype=int4: each query reads the newest so many tokens in full precision. 0: none.");
ABSL_FLAG(
    std::string, state_checkpoint_dtype, Config{}.state_checkpoint_dtype,
    "Of the recurrent states that are kept for requests with the same prefix: auto (as they are) or int8 (about 0.27 "
    "of float32's bytes). What goes on from one is then near what a cold run gives, not equal.");
ABSL_FLAG(
    std::string, host_tier, "0",
    "Memory outside the arena for the caches of sequences that give way and for prefixes that it drops, as 512MiB, "
    "used where copying costs less than computing again. 0: none; on the CPU a larger arena is the better use of it.");
ABSL_FLAG(
    std::string, copy_bytes_per_step, "256MiB",
    "Bytes copied at most for one step, to and from the host tier and to sessions' files. The tier's are copied beside "
    "steps, as many as it takes; a session's before the next, and without a cache that is larger.");
ABSL_FLAG(std::string, disk_tier, Config{}.disk_tier,
          "Folder of prefixes' caches below the host tier, which it needs. They outlive the process. It has one server "
          "at a time. Empty: none.");
ABSL_FLAG(std::string, disk_tier_bytes, "16GiB", "Bytes that the files of --disk_tier may take.");
ABSL_FLAG(
    std::string, tier_idle, absl::FormatDuration(Config{}.tier_idle),
    "A prefix that nobody used for so long moves to the tiers, as 30s or 2m; earlier where the arena runs short.");
ABSL_FLAG(bool, poison_cache, Config{}.poison_cache, "Fill returned cache units with NaN. For tests; slow.");
ABSL_FLAG(bool, check_integrity, Config{}.check_integrity,
          "Check the cache after every step and crash when its books do not balance. For tests; slow.");

ABSL_FLAG(
    int64_t, crop_every, Config{}.crop_every,
    "Drop some of a sequence's cache after every so many output tokens and compute it again. For tests; 0: never.");

ABSL_FLAG(std::string, session_dir, Config{}.session_dir,
          "Folder that keeps the requests that name a session_id, so that they can be resumed after a restart. It has "
          "one server at a time. Empty: no sessions.");
ABSL_FLAG(std::string, session_dir_limit, "16GiB", "Bytes that the sessions' files may take.");

ABSL_FLAG(int64_t, max_running, Config{}.max_running, "Sequences computed at once.");
ABSL_FLAG(int64_t, max_step_tokens, Config{}.max_step_tokens, "Tokens computed in one step.");
ABSL_FLAG(int64_t, prefill_chunk_tokens, Config{}.prefill_chunk_tokens, "Tokens of one prompt computed in one step.");
ABSL_FLAG(int64_t, max_sequence_tokens, Config{}.max_sequence_tokens,
          "Longest prompt + output. 0: the model's own limit, at most 32768; any other value wins over the model's.");
ABSL_FLAG(int64_t, max_queue, Config{}.max_queue, "Requests that may wait; one more is refused at once.");
ABSL_FLAG(int64_t, default_max_tokens, Config{}.default_max_tokens,
          "Longest output of a request that sets no max_tokens. 0: what max_sequence_tokens leaves.");
ABSL_FLAG(
    int64_t, draft_tokens, Config{}.draft_tokens,
    "Guesses of next tokens, looked up in what was said before, that one step checks for a greedy request that sets "
    "no draft_tokens; at most 16. The output is the same. 0: none.");
ABSL_FLAG(int64_t, max_logprobs, Config{}.max_logprobs, "Alternatives that a request may ask for with each token.");
ABSL_FLAG(int64_t, max_outputs, Config{}.max_outputs,
          "Outputs or beams that one request may ask for; at most max_running of them.");
// Text, because GCC's ThreadSanitizer refuses the fence in Abseil's flags of two words.
ABSL_FLAG(std::string, drain_grace, absl::FormatDuration(Config{}.drain_grace),
          "How long requests may go on after SIGTERM, as 30s or 2m. A second signal ends at once.");

ABSL_FLAG(std::string, log_level, Config{}.log_level, "trace, debug, info, warning, error or off.");
ABSL_FLAG(std::string, log_format, Config{}.log_format, "text, or json: one object a line.");

namespace berth {
namespace {

struct HelpGroup {
  absl::string_view title;
  std::vector<absl::string_view> flags;
};

const std::vector<HelpGroup>& HelpGroups() {
  static const auto* const groups = new std::vector<HelpGroup>{
      {"Model",
       {"model", "model_name", "dtype", "weights", "packed_weights", "chunk_invariant_scans", "device", "cuda_graphs",
        "threads"}},
      {"Addresses", {"listen", "metrics_listen", "metrics_compat", "port_file"}},
      {"Cache",
       {"arena", "block_tokens", "attention_window", "sink_tokens", "cache_dtype", "cache_residual_tokens",
        "share_prefixes", "state_checkpoint_tokens", "state_checkpoint_dtype", "aligned_prefill_chunks",
        "compact_bytes_per_step", "host_tier", "copy_bytes_per_step", "disk_tier", "disk_tier_bytes", "tier_idle",
        "poison_cache", "check_integrity", "crop_every"}},
      {"Sessions", {"session_dir", "session_dir_limit"}},
      {"Limits",
       {"max_running", "max_step_tokens", "prefill_chunk_tokens", "max_sequence_tokens", "max_queue",
        "default_max_tokens", "draft_tokens", "max_logprobs", "max_outputs", "drain_grace"}},
      {"Log", {"log_level", "log_format"}},
  };
  return *groups;
}

template <typename... Parts>
absl::Status Bad(absl::string_view flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", parts...));
}

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Bad(flag, value, " is outside [", least, ", ", most, "]");
}

absl::Status CheckChoice(absl::string_view flag, absl::string_view value, absl::Span<const absl::string_view> choices) {
  for (absl::string_view choice : choices) {
    if (value == choice) return absl::OkStatus();
  }
  return Bad(flag, "'", value, "' is none of ", absl::StrJoin(choices, ", "));
}

absl::Status CheckChoices(const Config& config) {
  struct Row {
    absl::string_view flag;
    absl::string_view value;
    std::vector<absl::string_view> choices;
  };
  const Row rows[] = {
      {"dtype", config.dtype, {"auto", "float32", "bfloat16"}},
      {"weights", config.weights, {"auto", "int8", "int4"}},
      {"device", config.device, {"cpu", "cuda"}},
      {"cache_dtype", config.cache_dtype, {"auto", "int8", "int4"}},
      {"state_checkpoint_dtype", config.state_checkpoint_dtype, {"auto", "int8"}},
      {"metrics_compat", config.metrics_compat, {"vllm", "none"}},
      {"log_level", config.log_level, {"trace", "debug", "info", "warning", "error", "off"}},
      {"log_format", config.log_format, {"text", "json"}},
  };
  for (const Row& row : rows) {
    if (absl::Status s = CheckChoice(row.flag, row.value, row.choices); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const Config& config) {
  struct Row {
    absl::string_view flag;
    int64_t value;
    int64_t least;
    int64_t most;
  };
  // The upper limits keep sizes that follow from them far from overflow; none is a limit of the design.
  const Row rows[] = {
      {"threads", config.num_threads, 0, 4096},
      {"block_tokens", config.block_tokens, 1, 1024},
      {"attention_window", config.attention_window, 0, 1 << 30},
      {"sink_tokens", config.sink_tokens, 0, 1 << 20},
      {"cache_residual_tokens", config.cache_residual_tokens, 0, 1 << 20},
      {"max_running", config.max_running, 1, 65536},
      {"max_step_tokens", config.max_step_tokens, 1, 1 << 20},
      {"prefill_chunk_tokens", config.prefill_chunk_tokens, 1, 1 << 20},
      {"max_sequence_tokens", config.max_sequence_tokens, 0, 1 << 30},
      {"max_queue", config.max_queue, 1, 1 << 20},
      {"default_max_tokens", config.default_max_tokens, 0, 1 << 30},
      {"max_logprobs", config.max_logprobs, 0, 1024},
      {"draft_tokens", config.draft_tokens, 0, kMaxDraftTokens},
      {"max_outputs", config.max_outputs, 1, 1024},
      {"crop_every", config.crop_every, 0, 1 << 20},
      {"state_checkpoint_tokens", config.state_checkpoint_tokens, 0, 1 << 20},
  };
  for (const Row& row : rows) {
    if (absl::Status s = CheckRange(row.flag, row.value, row.least, row.most); !s.ok()) return s;
  }
  if ((config.block_tokens & (config.block_tokens - 1)) != 0) {
    return Bad("block_tokens", config.block_tokens, " is no power of two");
  }
  if (config.arena_bytes < 0) return Bad("arena", config.arena_bytes, " bytes is negative");
  for (const auto& [flag, value] : {std::pair<const char*, absl::Duration>("drain_grace", config.drain_grace),
                                    std::pair<const char*, absl::Duration>("tier_idle", config.tier_idle)}) {
    if (value >= absl::ZeroDuration() && value <= absl::Hours(24)) continue;
    return Bad(flag, absl::FormatDuration(value), " is outside [0, 24h]");
  }
  return absl::OkStatus();
}

absl::Status CheckAddresses(const Config& config) {
  const absl::StatusOr<Address> listen = ParseAddress(config.listen);
  if (!listen.ok()) return Bad("listen", listen.status().message());
  if (config.metrics_listen.empty()) return absl::OkStatus();
  const absl::StatusOr<Address> metrics = ParseAddress(config.metrics_listen);
  if (!metrics.ok()) return Bad("metrics_listen", metrics.status().message());
  if (*listen == *metrics && listen->port != 0) {
    return Bad("metrics_listen", "'", config.metrics_listen,
               "' is --listen's address too; two servers cannot share it");
  }
  return absl::OkStatus();
}

absl::Status CheckCombinations(const Config& config) {
  if (!config.disk_tier.empty() && config.host_tier_bytes == 0) {
    return Bad("disk_tier", "needs --host_tier: prefixes come and go through host memory");
  }
  if (config.aligned_prefill_chunks && config.state_checkpoint_dtype != "auto") {
    return Bad("state_checkpoint_dtype", "'", config.state_checkpoint_dtype,
               "' rounds what a hit starts from; with --aligned_prefill_chunks a hit gives the bits of a cold run");
  }
  if (config.max_step_tokens < config.max_running) {
    return Bad("max_step_tokens", config.max_step_tokens, " is less than --max_running=", config.max_running,
               ": a step must hold a token of every running sequence");
  }
  if (config.prefill_chunk_tokens > config.max_step_tokens) {
    return Bad("prefill_chunk_tokens", config.prefill_chunk_tokens,
               " is more than --max_step_tokens=", config.max_step_tokens);
  }
  if (config.max_sequence_tokens == 1) return Bad("max_sequence_tokens", "1 leaves no room for a prompt and an output");
  if (config.max_sequence_tokens > 0 && config.max_sequence_tokens <= config.default_max_tokens &&
      config.default_max_tokens != Config{}.default_max_tokens) {
    return Bad("default_max_tokens", config.default_max_tokens,
               " leaves no room for a prompt in --max_sequence_tokens=", config.max_sequence_tokens);
  }
  return absl::OkStatus();
}

// Sizes of which 0 is one.
absl::Status ReadSizeOrZero(absl::string_view flag, const std::string& text, int64_t* out) {
  if (text == "0") {
    *out = 0;
    return absl::OkStatus();
  }
  const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) return Bad(flag, bytes.status().message(), ", or 0");
  *out = *bytes;
  return absl::OkStatus();
}

absl::StatusOr<Config> FromFlags() {
  Config config;
  config.model_dir = absl::GetFlag(FLAGS_model);
  config.model_name = absl::GetFlag(FLAGS_model_name);
  config.dtype = absl::GetFlag(FLAGS_dtype);
  config.device = absl::GetFlag(FLAGS_device);
  config.num_threads = absl::GetFlag(FLAGS_threads);
  config.listen = absl::GetFlag(FLAGS_listen);
  config.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  config.metrics_compat = absl::GetFlag(FLAGS_metrics_compat);
  config.port_file = absl::GetFlag(FLAGS_port_file);
  if (const std::string arena = absl::GetFlag(FLAGS_arena); arena != "auto") {
    const absl::StatusOr<int64_t> bytes = ParseByteSize(arena);
    if (!bytes.ok()) return Bad("arena", bytes.status().message(), ", or auto");
    config.arena_bytes = *bytes;
  }
  config.block_tokens = absl::GetFlag(FLAGS_block_tokens);
  config.attention_window = absl::GetFlag(FLAGS_attention_window);
  config.sink_tokens = absl::GetFlag(FLAGS_sink_tokens);
  config.weights = absl::GetFlag(FLAGS_weights);
  config.packed_weights = absl::GetFlag(FLAGS_packed_weights);
  config.chunk_invariant_scans = absl::GetFlag(FLAGS_chunk_invariant_scans);
  config.cuda_graphs = absl::GetFlag(FLAGS_cuda_graphs);
  config.cache_dtype = absl::GetFlag(FLAGS_cache_dtype);
  config.cache_residual_tokens = absl::GetFlag(FLAGS_cache_residual_tokens);
  config.state_checkpoint_dtype = absl::GetFlag(FLAGS_state_checkpoint_dtype);
  config.poison_cache = absl::GetFlag(FLAGS_poison_cache);
  config.check_integrity = absl::GetFlag(FLAGS_check_integrity);
  config.crop_every = absl::GetFlag(FLAGS_crop_every);
  config.share_prefixes = absl::GetFlag(FLAGS_share_prefixes);
  config.state_checkpoint_tokens = absl::GetFlag(FLAGS_state_checkpoint_tokens);
  config.aligned_prefill_chunks = absl::GetFlag(FLAGS_aligned_prefill_chunks);
  const absl::StatusOr<int64_t> compact = ParseByteSize(absl::GetFlag(FLAGS_compact_bytes_per_step));
  if (!compact.ok()) return Bad("compact_bytes_per_step", compact.status().message());
  config.compact_bytes_per_step = *compact;
  const absl::StatusOr<int64_t> copy = ParseByteSize(absl::GetFlag(FLAGS_copy_bytes_per_step));
  if (!copy.ok()) return Bad("copy_bytes_per_step", copy.status().message());
  config.copy_bytes_per_step = *copy;
  absl::Status s = ReadSizeOrZero("host_tier", absl::GetFlag(FLAGS_host_tier), &config.host_tier_bytes);
  if (!s.ok()) return s;
  config.disk_tier = absl::GetFlag(FLAGS_disk_tier);
  const absl::StatusOr<int64_t> disk = ParseByteSize(absl::GetFlag(FLAGS_disk_tier_bytes));
  if (!disk.ok()) return Bad("disk_tier_bytes", disk.status().message());
  config.disk_tier_bytes = *disk;
  if (const std::string idle = absl::GetFlag(FLAGS_tier_idle); !absl::ParseDuration(idle, &config.tier_idle)) {
    return Bad("tier_idle", "'", idle, "' is no duration: write a number and a unit, as 30s or 2m");
  }
  config.session_dir = absl::GetFlag(FLAGS_session_dir);
  const absl::StatusOr<int64_t> sessions = ParseByteSize(absl::GetFlag(FLAGS_session_dir_limit));
  if (!sessions.ok()) return Bad("session_dir_limit", sessions.status().message());
  config.session_dir_limit = *sessions;
  config.max_running = absl::GetFlag(FLAGS_max_running);
  config.max_step_tokens = absl::GetFlag(FLAGS_max_step_tokens);
  config.prefill_chunk_tokens = absl::GetFlag(FLAGS_prefill_chunk_tokens);
  config.max_sequence_tokens = absl::GetFlag(FLAGS_max_sequence_tokens);
  config.max_queue = absl::GetFlag(FLAGS_max_queue);
  config.default_max_tokens = absl::GetFlag(FLAGS_default_max_tokens);
  config.draft_tokens = absl::GetFlag(FLAGS_draft_tokens);
  config.max_logprobs = absl::GetFlag(FLAGS_max_logprobs);
  config.max_outputs = absl::GetFlag(FLAGS_max_outputs);
  if (const std::string grace = absl::GetFlag(FLAGS_drain_grace); !absl::ParseDuration(grace, &config.drain_grace)) {
    return Bad("drain_grace", "'", grace, "' is no duration: write a number and a unit, as 30s or 2m");
  }
  config.log_level = absl::GetFlag(FLAGS_log_level);
  config.log_format = absl::GetFlag(FLAGS_log_format);
  return config;
}

// Breaks `text` at spaces so that no line is longer than `width`.
std::vector<std::string> Wrap(absl::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    absl::StrAppend(&lines.back(), lines.back().empty() ? "" : " ", word);
  }
  return lines;
}

void PrintAndExit(absl::string_view text) {
  std::cout << text << std::flush;
  std::exit(0);
}

}  // namespace

std::string HelpText() {
  constexpr size_t kColumn = 34;
  constexpr size_t kWidth = 110;
  std::string text =
      "Serves the language model of a Hugging Face checkpoint over gRPC (berth.v1).\n\n"
      "  berth-server --model=DIR [flags]\n";
  for (const HelpGroup& group : HelpGroups()) {
    absl::StrAppend(&text, "\n", group.title, "\n");
    for (absl::string_view name : group.flags) {
      const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
      std::string left = absl::StrCat("  --", name, "=", flag->DefaultValue());
      for (const std::string& line : Wrap(flag->Help(), kWidth - kColumn)) {
        if (left.size() >= kColumn) {
          absl::StrAppend(&text, left, "\n");
          left.clear();
        }
        left.resize(kColumn, ' ');
        absl::StrAppend(&text, left, line, "\n");
        left.clear();
      }
    }
  }
  absl::StrAppend(&text, "\nAlso\n",
                  "  --flagfile=FILE                 Flags from a file, one a line; # begins a comment.\n"
                  "  --list_models                   The architectures that are served, and their cache kinds.\n"
                  "  --version                       Berth's version.\n");
  return text;
}

absl::Status Validate(const Config& config) {
  if (config.packed_weights.empty()) return Bad("packed_weights", "empty: auto, none or a folder");
  if (config.model_dir.empty()) return Bad("model", "missing: name the folder of a Hugging Face checkpoint");
  for (const auto check : {CheckChoices, CheckRanges, CheckAddresses, CheckCombinations}) {
    if (absl::Status s = check(config); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<Config> ParseCommandLine(int argc, char** argv) {
  // Before Abseil sees them: its own help lists every flag of every library, and exits 1.
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "-h" || absl::StartsWith(argument, "--help")) PrintAndExit(HelpText());
    if (argument == "--version") PrintAndExit(absl::StrCat("berth-server ", kVersion, "\n"));
  }
  const std::vector<char*> positional = absl::ParseCommandLine(argc, argv);
  if (positional.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument '", positional[1], "': every value belongs to a flag, as --model=DIR"));
  }
  absl::StatusOr<Config> config = FromFlags();
  if (!config.ok()) return config;
  if (absl::Status s = Validate(*config); !s.ok()) return s;
  return config;
}

}  // namespace berth
