#include "server/config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/request.h"
#include "server/version.h"

namespace berth {
namespace {

constexpr char kIntro[] =
    "Serves the language model of a Hugging Face checkpoint over gRPC (berth.v1).\n\n"
    "  berth-server --model=FOLDER [flags]\n\n"
    "Without --model it serves the demo model that comes with it.\n";

// Old name, new name.
constexpr std::pair<const char*, const char*> kRenamedFlags[] = {
    {"anchored_chunks", "aligned_prefill_chunks"},    {"checkpoint_dtype", "state_checkpoint_dtype"},
    {"checkpoint_tokens", "state_checkpoint_tokens"}, {"compact_per_step", "compact_bytes_per_step"},
    {"copy_per_step", "copy_bytes_per_step"},         {"stable_scans", "chunk_invariant_scans"},
    {"target_step_ms", "target_step_time"},
};

// The upper limits of numbers keep the sizes that follow from them far from overflow. None is a limit of the design.
constexpr int64_t kMaxTokens = 1 << 30;
constexpr int64_t kMaxCount = 1 << 20;

void AddModelFlags(FlagSet* flags, Config* config) {
  LoadOptions& model = config->model;
  flags->AddGroup("Model");
  flags->Add("model", &model.model_dir, "folder",
             "Folder of a Hugging Face checkpoint. Empty: the demo model that comes with the server.");
  flags->Add("model_name", &model.name, "name", "Name of the model in the API. Empty: the folder's name.");
  flags->Add("dtype", &model.dtype, OneOf({"auto", "float32", "bfloat16"}),
             "Data type of weights and activations. auto: the checkpoint's.");
  flags->Add("weights", &model.weights, OneOf({"auto", "int8", "int4"}),
             "Data type of the linear-layer weights. auto: same as --dtype. int4 works on a CPU only, and keeps the "
             "output head in int8.");
  flags->Add("packed_weights", &config->packed_weights, "auto|none|folder",
             "Folder that keeps the packed weights for a fast next start (CPU). auto: .berth in the checkpoint's "
             "folder. none: pack them at every start.");
  flags->Add("chunk_invariant_scans", &model.chunk_invariant_scans, "",
             "On the CPU, prefill Mamba-2 and gated delta net layers token by token, so that no bit depends on the "
             "prefill chunks.");
  flags->Add("device", &model.device, "name",
             "Device to run on: cpu, cuda (the first GPU), cuda:N (GPU N), or auto (the first GPU if it works, else "
             "the CPU).");
  flags->Add("cuda_graphs", &config->cuda_graphs, OrAuto(""),
             "Launch decode steps as CUDA graphs. Requires a GPU. auto: true on a GPU, false on a CPU.");
  flags->Add("threads", &model.num_threads, Between(0, 4096), "Threads that compute a step. 0: one per usable core.");
}

void AddNetworkFlags(FlagSet* flags, Config* config) {
  flags->AddGroup("Network");
  flags->Add("listen", &config->listen, "address",
             "Address of the gRPC server: host:port, or unix:/path. Port 0: any free port. See --insecure.");
  flags->Add("metrics_listen", &config->metrics_listen, "host:port",
             "Address of Prometheus metrics, in plaintext. Port 0: any. Empty: none. If the network can reach the "
             "address, a scrape needs a token whose only role is metrics.");
  flags->Add("metrics_compat", &config->metrics.vllm_aliases, OneOf<bool>({{"vllm", true}, {"none", false}}),
             "vllm: also export metrics under vLLM's names. none: Berth's names only.");
  flags->Add("ping_interval", &config->ping_interval, Between(absl::Milliseconds(100), absl::Hours(24)),
             "Time between pings of a client with calls under way.");
  flags->Add("connection_age", &config->connection_age, Between(absl::Milliseconds(100), absl::Hours(24 * 14)),
             "Age at which the server closes a connection, so that the client connects anew. Its requests have as long "
             "again to end.");
  flags->Add("max_connections", &config->connections.max_connections, Between(0, 1 << 20),
             "Maximum number of open connections. The next one is closed at once. 0: no limit.");
  flags->Add("max_connections_per_address", &config->connections.max_connections_per_address, Between(0, 1 << 20),
             "Maximum number of open connections of one IPv4 address, or of one IPv6 network of 64 bits. 0: no limit.");
  flags->Add("reflection", &config->reflection, OneOf({"auto", "on", "off"}),
             "Describe the API to tools such as grpcurl. auto: off where authentication is on.");
  flags->Add("port_file", &config->port_file, "file",
             "File that gets the ports once the server listens: {\"grpc\": 8600, \"metrics\": 8601, \"gateway\": 0, "
             "\"health\": 0}. A port of 0 means no such listener. Empty: no file.");
}

void AddSecurityFlags(FlagSet* flags, Config* config) {
  flags->AddGroup("Security");
  flags->Add(
      "tls_cert", &config->tls.cert, "file",
      "PEM file of the server's certificate and those between it and its CA. --listen then speaks TLS. The files "
      "of TLS are read again when they change. Empty: plaintext.");
  flags->Add("tls_key", &config->tls.key, "file", "PEM file of the certificate's private key.");
  flags->Add("tls_client_ca", &config->tls.client_ca, "file",
             "PEM file of the CAs that sign the clients' certificates. Clients must show a certificate, or a token if "
             "--tenants has credentials. Empty: clients are not asked for a certificate.");
  flags->Add("insecure", &config->insecure, "",
             "Start although the network can reach the server without TLS or without a credential.");
  flags->Add("gateway_listen", &config->gateway_listen, "address",
             "Loopback address or unix:/path where all requests are those of --gateway_tenant, without a credential. "
             "Empty: none.");
  flags->Add("gateway_tenant", &config->gateway_tenant, "name", "Tenant of the requests by --gateway_listen.");
  flags->Add(
      "health_listen", &config->health_listen, "address",
      "Address that answers only health checks, in plaintext and without a credential, for probes. Empty: none.");
}

void AddCacheFlags(FlagSet* flags, Config* config) {
  LoadOptions& model = config->model;
  flags->AddGroup("Cache");
  flags->Add(
      "arena", &config->arena_bytes, Bytes("auto"),
      "Memory for the cache, for example 8GiB. On a CPU, auto takes a quarter of the free memory, but at least what "
      "one sequence needs and at most what --max_running sequences need. On a GPU, auto takes the free memory less a "
      "reserve.");
  flags->Add("block_tokens", &model.block_tokens, Between(1, 1024), "Tokens per cache block. A power of two.");
  flags->Add("attention_window", &model.attention_window, Between<int64_t>(0, kMaxTokens),
             "Limit attention to the newest n tokens and the first --sink_tokens, so that memory stays bounded "
             "(StreamingLLM). Layers with a smaller window keep it. 0: the model's own attention.");
  flags->Add("sink_tokens", &model.sink_tokens, Between<int64_t>(0, kMaxCount),
             "First tokens that stay visible with --attention_window. 0: none.");
  flags->Add(
      "cache_dtype", &model.cache_dtype, OneOf({"auto", "int8", "int4"}),
      "Data type of cached keys and values, except those of cross-attention. auto: the model's. int8 takes about "
      "0.5 and int4 about 0.28 of bfloat16's memory.");
  flags->Add("cache_residual_tokens", &model.cache_residual_tokens, Between<int64_t>(0, kMaxCount),
             "Newest tokens that attention reads in full precision with --cache_dtype=int4. 0: none.");
}

void AddPrefixFlags(FlagSet* flags, Config* config) {
  Scheduler::Options& scheduler = config->engine.scheduler;
  flags->AddGroup("Prefix sharing");
  flags->Add("share_prefixes", &scheduler.share_prefixes, "",
             "Reuse the cache of prompts that begin alike. A request can opt out.");
  flags->Add(
      "state_checkpoint_tokens", &config->state_checkpoint_tokens, OrAuto(Between<int64_t>(0, kMaxCount)),
      "Keep recurrent states every n tokens, at the ends of prompts and outputs, and where prompts depart; a prefix "
      "hit recomputes the tokens after them. 0: not every n. auto: distances grow with the states' size; also the ends "
      "of messages.");
  flags->Add("state_checkpoint_share", &config->cache.state_share, Between(0.0, 1.0),
             "Share of the arena that kept recurrent states may take. Over it, old states are thinned out. 0: keep "
             "none.");
  flags->Add("state_checkpoint_dtype", &config->model.state_checkpoint_dtype, OneOf({"auto", "int8"}),
             "Data type of the recurrent states kept for prefix hits. auto: unchanged. int8: about 0.27 of float32's "
             "memory; hits are then close to a cold run, not equal.");
  flags->Add("aligned_prefill_chunks", &scheduler.aligned_prefill_chunks, "",
             "Cut prefill at multiples of --prefill_chunk_tokens and reuse whole chunks only, so that prefix hits are "
             "bit-identical to a cold run.");
}

void AddTierFlags(FlagSet* flags, Config* config) {
  Scheduler::Options& scheduler = config->engine.scheduler;
  flags->AddGroup("Memory tiers and copies");
  flags->Add("host_tier", &scheduler.swap.host_tier_bytes, Bytes("0"),
             "Host memory for the caches of preempted sequences and for evicted prefixes. 0: they are computed again "
             "when they are needed. On a CPU, a larger --arena is the better use of memory.");
  flags->Add(
      "disk_tier", &config->disk_tier.folder, "folder",
      "Folder for files of the host tier's prefixes, which survive a restart. Requires --host_tier. One server at "
      "a time may use the folder. Empty: none.");
  flags->Add("disk_tier_bytes", &scheduler.prefixes.disk_limit_bytes, Bytes(),
             "Maximum size of the files in --disk_tier.");
  flags->Add("tier_idle", &scheduler.prefixes.idle, Between(absl::ZeroDuration(), absl::Hours(24)),
             "Time without use after which a prefix is copied to the tiers. When the arena runs short, it is copied "
             "earlier. 0: at once.");
  flags->Add(
      "copy_bytes_per_step", &scheduler.swap.copy_bytes_per_step, Bytes(),
      "Maximum bytes copied per step to or from the host tier and session files. A session with a larger cache is "
      "saved without it.");
  flags->Add("compact_bytes_per_step", &scheduler.compact_bytes_per_step, Bytes(),
             "Maximum bytes moved between two steps to gather free memory.");
}

void AddSessionFlags(FlagSet* flags, Config* config) {
  flags->AddGroup("Sessions");
  flags->Add("session_dir", &config->sessions.folder, "folder",
             "Folder for requests with a session_id, so that they can be resumed after a restart. One server at a time "
             "may use the folder. Empty: no sessions.");
  flags->Add("session_dir_limit", &config->sessions.limit_bytes, Bytes(), "Maximum size of the session files.");
}

void AddLimitFlags(FlagSet* flags, Config* config) {
  Scheduler::Options& scheduler = config->engine.scheduler;
  RequestLimits& limits = config->limits;
  flags->AddGroup("Limits");
  flags->Add("max_running", &scheduler.max_running, Between(1, 65536), "Maximum number of sequences computed at once.");
  flags->Add("max_step_tokens", &config->max_step_tokens, OrAuto(Between<int64_t>(1, kMaxCount)),
             "Maximum tokens in a step, --max_running or more. auto: 512, with an encoder up to 1025, on a GPU "
             "4096.");
  flags->Add("prefill_chunk_tokens", &config->prefill_chunk_tokens, OrAuto(Between<int64_t>(1, kMaxCount)),
             "Maximum tokens of one prompt in a step. auto: 256, on a GPU 2048.");
  flags->Add("target_step_time", &scheduler.target_step_time, Between(absl::ZeroDuration(), absl::Minutes(1)),
             "Time that a step may take while sequences decode. Prompts are cut into chunks that fit. 0: no limit; "
             "--prefill_chunk_tokens decides.");
  flags->Add("max_sequence_tokens", &scheduler.max_sequence_tokens, Between<int64_t>(0, kMaxTokens),
             "Maximum length of prompt plus output. 0: the model's limit, at most 32768.");
  flags->Add("scheduling", &config->fair_scheduling, OneOf<bool>({{"fair", true}, {"fcfs", false}}),
             "fair: share the server equally among tenants (cache_salt), however much each sends; priorities order the "
             "requests of one tenant. fcfs: first come, first served.");
  flags->Add("max_queue", &config->engine.max_queue, Between<int64_t>(1, kMaxCount),
             "Maximum number of requests that wait. The next one is refused at once.");
  flags->Add("max_queued_tokens", &config->engine.max_queued_tokens, Between<int64_t>(0, kMaxTokens),
             "Maximum tokens that the waiting requests have to prefill. 0: no limit.");
  flags->Add("max_wait", &config->engine.max_wait, Between(absl::ZeroDuration(), absl::Hours(24)),
             "Refuse a request if its first step is predicted to come later than this. 0: no limit.");
  flags->Add("tenants", &config->tenants, "file",
             "JSON file with each tenant's weight and limits: see docs/operations.md. Empty: none.");
  flags->Add("default_max_tokens", &limits.default_max_tokens, Between<int64_t>(0, kMaxTokens),
             "Maximum output of a request that does not set max_tokens. 0: what --max_sequence_tokens leaves.");
  flags->Add("draft_tokens", &limits.default_draft_tokens, Between<int64_t>(0, kMaxDraftTokens),
             "Draft tokens per step for a greedy request that does not set draft_tokens. The output stays the same. 0: "
             "none.");
  flags->Add("max_logprobs", &limits.max_logprobs, Between(0, 1024),
             "Maximum number of alternatives per token that a request may ask for.");
  flags->Add("max_outputs", &limits.max_outputs, Between(1, 1024),
             "Maximum number of outputs or beams per request. At most --max_running.");
  flags->Add("grammar_cache", &config->grammars.cache_bytes, Bytes("0"),
             "Memory for keeping compiled grammars of structured outputs. 0: keep none.");
  flags->Add("grammar_timeout", &config->grammars.timeout, Between(absl::Milliseconds(1), absl::Hours(1)),
             "Maximum time to compile one grammar.");
  flags->Add("step_timeout", &config->watchdog.timeout, Between(absl::ZeroDuration(), absl::Hours(24)),
             "Time without progress after which a step counts as hung, and the liveness check fails. After twice this "
             "time the server exits with code 4. 0: never.");
  flags->Add("start_timeout", &config->start_timeout, Between(absl::ZeroDuration(), absl::Hours(24)),
             "Time without progress after which the start counts as hung, and the log says where. After twice this "
             "time the server exits with code 4. 0: never.");
  flags->Add("unread_timeout", &config->engine.unread_timeout, Between(absl::Milliseconds(1), absl::Hours(24)),
             "Time after which a request ends that is paused because its client does not read.");
  flags->Add("drain_grace", &config->drain_grace, Between(absl::ZeroDuration(), absl::Hours(24)),
             "Time that requests have to finish after SIGTERM. A second SIGTERM ends the server at once.");
}

void AddOtherFlags(FlagSet* flags, Config* config) {
  flags->AddGroup("Log");
  flags->Add("crash_dir", &config->crash_dir, "folder",
             "Folder where the server writes its last steps when it ends by a fault, a hang or a lost GPU. berth-cli "
             "trace --from=FILE reads the file. Empty: none.");
  flags->Add("log_level", &config->log_level, OneOf({"trace", "debug", "info", "warning", "error", "off"}),
             "Lowest level of the messages that are logged.");
  flags->Add("log_format", &config->log_format, OneOf({"text", "json"}),
             "Format of the log. json: one object per line.");
  flags->Add("audit_log", &config->audit_log, "file",
             "File for refused credentials and operator calls. Empty: the usual log.");
  flags->AddGroup("Other");
  flags->AddFlagFile();
  flags->Add("dry_run", &config->model.dry_run, "",
             "Print what weights and cache would take, and how many sequences fit. Exit.");
  flags->Add("list_models", &config->list_models, "", "Print the supported architectures and exit.");
  flags->Add("list_kernels", &config->list_kernels, "",
             "Print the sets of CPU kernels, which one runs here, and why. Exit.");
  flags->Add("version", &config->version, "", "Print the version and exit.");
}

// The last group: nothing that an operator needs.
void AddTestFlags(FlagSet* flags, Config* config) {
  Scheduler::Options& scheduler = config->engine.scheduler;
  flags->AddGroup("For tests");
  flags->Add("check_integrity", &config->engine.check_integrity, "",
             "Check the cache after every step and crash if it is inconsistent. Slow.");
  flags->Add("poison_cache", &config->cache.poison_returned_units, "", "Fill freed cache memory with NaN. Slow.");
  flags->Add("fail_step_every", &config->engine.fail_step_every, Between<int64_t>(0, kMaxCount),
             "Fail every n-th step. 0: none.");
  flags->Add("always_copy", &scheduler.swap.always_copy, "",
             "Copy caches to and from the tiers even if computing them again is measured to be faster.");
  flags->Add("crop_every", &scheduler.crop_every, Between<int64_t>(0, kMaxCount),
             "Recompute part of the cache every n output tokens. 0: never.");
}

template <typename... Parts>
absl::Status Bad(absl::string_view flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", parts...));
}

bool IsDevice(absl::string_view name) {
  uint32_t index = 0;
  if (absl::ConsumePrefix(&name, "cuda:")) return absl::SimpleAtoi(name, &index);
  return name == "auto" || name == "cpu" || name == "cuda";
}

absl::Status ValidateListeners(const Config& config) {
  const std::pair<const char*, std::optional<Address>> listeners[] = {{"listen", config.listen},
                                                                      {"metrics_listen", config.metrics_listen},
                                                                      {"gateway_listen", config.gateway_listen},
                                                                      {"health_listen", config.health_listen}};
  for (const auto& [flag, address] : listeners) {
    for (const auto& [earlier, taken] : listeners) {
      if (earlier == flag) break;
      if (!address || address != taken || (!address->IsUnix() && address->port == 0)) continue;
      return Bad(flag, address->ToString(), " is also the address of --", earlier);
    }
  }
  if (config.metrics_listen && config.metrics_listen->IsUnix()) {
    return Bad("metrics_listen", config.metrics_listen->ToString(), " is a Unix socket; write host:port");
  }
  if (config.gateway_listen && !config.gateway_listen->IsLocal()) {
    return Bad(
        "gateway_listen", config.gateway_listen->ToString(),
        " can be reached from the network, and asks for no credential; name a loopback address or a Unix socket");
  }
  if (config.gateway_listen.has_value() == config.gateway_tenant.empty()) {
    return config.gateway_listen ? Bad("gateway_listen", "requires --gateway_tenant")
                                 : Bad("gateway_tenant", "requires --gateway_listen");
  }
  if (config.tls.cert.empty() != config.tls.key.empty()) {
    return config.tls.key.empty() ? Bad("tls_cert", "requires --tls_key") : Bad("tls_key", "requires --tls_cert");
  }
  if (!config.tls.client_ca.empty() && config.tls.cert.empty()) {
    return Bad("tls_client_ca", "requires --tls_cert and --tls_key");
  }
  return absl::OkStatus();
}

}  // namespace

FlagSet ServerFlags(Config* config) {
  FlagSet flags;
  for (const auto add : {AddModelFlags, AddNetworkFlags, AddSecurityFlags, AddCacheFlags, AddPrefixFlags, AddTierFlags,
                         AddSessionFlags, AddLimitFlags, AddOtherFlags, AddTestFlags}) {
    add(&flags, config);
  }
  for (const auto& [old_name, new_name] : kRenamedFlags) flags.AddRenamed(old_name, new_name);
  return flags;
}

std::string HelpText() {
  Config config;
  return absl::StrCat(kIntro, "\n", ServerFlags(&config).Help());
}

std::string FlagsMarkdown() {
  Config config;
  return ServerFlags(&config).Markdown();
}

void SetDeviceDefaults(bool on_gpu, Config* config) {
  Scheduler::Options& scheduler = config->engine.scheduler;
  const Scheduler::Options cpu;
  scheduler.max_step_tokens = config->max_step_tokens.value_or(on_gpu ? 4096 : cpu.max_step_tokens);
  const int64_t chunk = on_gpu ? 2048 : cpu.prefill_chunk_tokens;
  scheduler.prefill_chunk_tokens = config->prefill_chunk_tokens.value_or(std::min(chunk, scheduler.max_step_tokens));
  scheduler.state_checkpoint_tokens = config->state_checkpoint_tokens.value_or(Scheduler::Options::kAutoCheckpoints);
  config->model.cuda_graphs = config->cuda_graphs.value_or(on_gpu);
}

absl::Status Validate(const Config& config) {
  const LoadOptions& model = config.model;
  const Scheduler::Options& scheduler = config.engine.scheduler;
  const int64_t max_output = config.limits.default_max_tokens;
  const int64_t max_sequence = scheduler.max_sequence_tokens;
  if (!IsDevice(model.device)) return Bad("device", model.device, " is not auto, cpu, cuda or cuda:N");
  if (config.packed_weights.empty()) return Bad("packed_weights", "an empty value is not auto, none or a folder");
  if ((model.block_tokens & (model.block_tokens - 1)) != 0) {
    return Bad("block_tokens", model.block_tokens, " is not a power of two");
  }
  if (absl::Status s = ValidateListeners(config); !s.ok()) return s;
  if (!config.disk_tier.folder.empty() && config.disk_tier.folder == config.sessions.folder) {
    return Bad("disk_tier", "must be another folder than --session_dir");
  }
  if (!config.disk_tier.folder.empty() && scheduler.swap.host_tier_bytes == 0) {
    return Bad("disk_tier", "requires --host_tier, because prefixes pass through host memory");
  }
  if (scheduler.aligned_prefill_chunks && model.state_checkpoint_dtype != "auto") {
    return Bad("state_checkpoint_dtype", model.state_checkpoint_dtype,
               " rounds the states that a prefix hit starts from; --aligned_prefill_chunks needs them exact");
  }
  if (scheduler.aligned_prefill_chunks && scheduler.target_step_time > absl::ZeroDuration()) {
    return Bad("target_step_time", FormatFlagValue(scheduler.target_step_time),
               " cuts chunks by time; --aligned_prefill_chunks needs them at fixed places");
  }
  if (scheduler.max_step_tokens < scheduler.max_running) {
    return Bad("max_step_tokens", scheduler.max_step_tokens, " is less than --max_running=", scheduler.max_running,
               "; a step must hold one token of every running sequence");
  }
  if (scheduler.prefill_chunk_tokens > scheduler.max_step_tokens) {
    return Bad("prefill_chunk_tokens", scheduler.prefill_chunk_tokens,
               " is more than --max_step_tokens=", scheduler.max_step_tokens);
  }
  if (scheduler.aligned_prefill_chunks &&
      scheduler.prefill_chunk_tokens > scheduler.max_step_tokens - (scheduler.max_running - 1)) {
    return Bad("prefill_chunk_tokens", scheduler.prefill_chunk_tokens,
               " is more than --max_step_tokens=", scheduler.max_step_tokens,
               " leaves beside --max_running=", scheduler.max_running,
               "; with --aligned_prefill_chunks each step must have room for a whole chunk");
  }
  if (max_sequence == 1) return Bad("max_sequence_tokens", "1 leaves no room for both a prompt and an output");
  if (max_sequence > 0 && max_sequence <= max_output && max_output != Config{}.limits.default_max_tokens) {
    return Bad("default_max_tokens", max_output,
               " leaves no room for a prompt in --max_sequence_tokens=", max_sequence);
  }
  return absl::OkStatus();
}

absl::StatusOr<Config> ParseCommandLine(int argc, char** argv) {
  Config config;
  const absl::StatusOr<FlagSet::Parsed> parsed =
      ServerFlags(&config).Parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!parsed.ok()) return parsed.status();
  if (config.version) config.printed = absl::StrCat("berth-server ", kVersion, "\n");
  if (parsed->help) config.printed = HelpText();
  if (parsed->markdown) config.printed = FlagsMarkdown();
  if (!config.printed.empty()) return config;
  if (!parsed->positional.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument ", parsed->positional[0], "; write flags as --name=value"));
  }
  if (config.list_models || config.list_kernels) return config;
  SetDeviceDefaults(/*on_gpu=*/config.model.device != "cpu", &config);
  if (absl::Status s = Validate(config); !s.ok()) return s;
  return config;
}

}  // namespace berth
