// The server's settings: the Options of its components, filled from flags and flag files and checked before anything
// starts. No other file of the server knows of flags. Thread-compatible.
//
// The server also reads two environment variables. The CPU kernels read BERTH_CPU_CAPABILITY to choose their
// instruction set (CpuCapability in models/loader.h). CUDA reads CUDA_VISIBLE_DEVICES, and --device=cuda:N counts the
// GPUs that it lists (ShowOnlyGpu in models/runner/cuda_driver.h).
//
// To add a flag:
//   1. Add a field to the Options struct of the component that uses it, with meaning, default and what 0 means. A
//      setting that only main.cc or server.cc uses is a field of Config.
//   2. Bind the field in config.cc: one Add() in the group of --help where it belongs.
//   3. Run `./dev docs`, which writes docs/flags.md.
// Parsing, limits, --help and the documents follow. A rule about two flags goes into Validate. The old name of a
// renamed flag goes into kRenamedFlags in config.cc.
#ifndef BERTH_SERVER_CONFIG_H_
#define BERTH_SERVER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/cache.h"
#include "flags/flag_set.h"
#include "flags/units.h"
#include "models/load_options.h"
#include "scheduler/engine.h"
#include "server/auth/certificate_files.h"
#include "server/connection_gate.h"
#include "server/metrics/metrics.h"
#include "server/process/watchdog.h"
#include "server/request/grammar_compiler.h"
#include "server/request/validation.h"
#include "server/storage/disk_tier.h"
#include "server/storage/session_store.h"

namespace berth {

// A component's own default suits tests; a different default of the server stands here. Server::Start and main.cc add
// what flags cannot set: pointers, the model, and the sizes that follow from it.
struct Config {
  LoadOptions model = {.device = "auto"};
  // none: the device's, see SetDeviceDefaults.
  std::optional<bool> cuda_graphs;              // for model.cuda_graphs
  std::optional<int64_t> max_step_tokens;       // for engine.scheduler.max_step_tokens
  std::optional<int64_t> prefill_chunk_tokens;  // for engine.scheduler.prefill_chunk_tokens
  // Folder of the file that keeps the packed matrices for the next start: auto (.berth in the checkpoint's folder),
  // none, or another folder.
  std::string packed_weights = "auto";

  Address listen = {"127.0.0.1", 8600};                                // gRPC; port 0: any free port
  std::optional<Address> metrics_listen = Address{"127.0.0.1", 8601};  // Prometheus scrapes; none: no endpoint
  absl::Duration ping_interval = absl::Seconds(30);                    // between pings of a client with calls under way
  // Connections are renewed so that balancers see new servers. The requests of an old one have as long again to end.
  absl::Duration connection_age = absl::Hours(1);
  ConnectionGate::Options connections;
  // A listener of one tenant's requests alone, for a gateway that sends no token. Only this machine can reach it.
  std::optional<Address> gateway_listen;  // none: there is no such listener
  std::string gateway_tenant;             // whose requests they are
  std::optional<Address> health_listen;   // plaintext, health alone, for probes; none: there is no such listener
  CertificateFiles::Options tls;          // of `listen`; cert "": plaintext
  bool insecure = false;                  // anybody on the network may use the server, or read what it sends
  std::string reflection = "auto";        // gRPC's reflection service: on, off, auto (off with authentication)
  std::string port_file;                  // file that gets the ports once both listen; "": none
  Metrics::Options metrics;

  bool fair_scheduling = true;  // FairPolicy; else first come, first served
  int64_t arena_bytes = 0;      // of the cache; 0: chosen at the start, see ChooseArenaBytes in capacity.h
  Cache::Options cache = {.state_share = 0.5};
  std::optional<int64_t> state_checkpoint_tokens;  // none: Scheduler::Options::kAutoCheckpoints
  Engine::Options engine = {.scheduler = {.share_prefixes = true,
                                          .compact_bytes_per_step = 4 << 20,
                                          .swap = {.beside_steps = true},
                                          .prefixes = {.disk_limit_bytes = int64_t{16} << 30}}};
  DiskTier::Options disk_tier;                                          // folder "": no disk tier
  SessionStore::Options sessions = {.limit_bytes = int64_t{16} << 30};  // folder "": no sessions
  RequestLimits limits = {.default_max_tokens = 1024};
  GrammarCompiler::Options grammars;

  Watchdog::Options watchdog;
  absl::Duration start_timeout = absl::Hours(1);  // of the watchdog of the start; 0: none

  std::string tenants;  // file of the tenants' limits, see tenants.h; "": none

  absl::Duration drain_grace = absl::Seconds(30);  // time that requests may take to finish after SIGTERM; 0: none
  std::string crash_dir;                           // folder for a file of the last steps after a fault; "": none
  std::string log_level = "info";                  // trace, debug, info, warning, error, off
  std::string log_format = "text";                 // text, json (one object per line)
  std::string audit_log;                           // file of the audit log, see logging.h; "": the usual log

  bool list_models = false;   // print the supported architectures and exit
  bool list_kernels = false;  // print the sets of CPU kernels and exit
  bool version = false;       // print the version and exit
  std::string printed;        // not a flag: what --help or --version prints; "": the server is to run
};

// All flags of the server, bound to the fields of `*config`, which must outlive the set.
FlagSet ServerFlags(Config* config);

// Reads the arguments and checks them. INVALID_ARGUMENT naming flag, value and limit: an unknown flag, a value that is
// malformed or out of range, or what Validate refuses. With --help, --version, --list_models and --list_kernels only
// the flags themselves are checked.
absl::StatusOr<Config> ParseCommandLine(int argc, char** argv);

// Completes the settings whose default depends on the device. A GPU computes larger steps in the same time: with
// `on_gpu`, steps of 4096 tokens and prefill chunks of 2048, and CUDA graphs; else 512, 256, and none. A chunk is never
// larger than a step. ParseCommandLine assumes a GPU where --device=auto, so that it refuses nothing that may be right.
void SetDeviceDefaults(bool on_gpu, Config* config);

// INVALID_ARGUMENT naming flag, value and limit: combinations that contradict each other.
absl::Status Validate(const Config& config);

// What --help prints.
std::string HelpText();

// The Markdown of docs/flags.md about the server.
std::string FlagsMarkdown();

}  // namespace berth

#endif  // BERTH_SERVER_CONFIG_H_
