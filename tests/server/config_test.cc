#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Config> Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "berth");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return ParseCommandLine(static_cast<int>(arguments.size()), argv.data());
}

// A line for each flag, with what its field holds.
std::vector<std::string> Values(Config config) { return absl::StrSplit(ServerFlags(&config).Markdown(), '\n'); }

// The flags' names in the order of --help, of such lines.
std::vector<std::string> Names(const std::vector<std::string>& values) {
  std::vector<std::string> names;
  for (absl::string_view line : values) {
    if (absl::ConsumePrefix(&line, "| `--")) names.emplace_back(line.substr(0, line.find_first_of("=`")));
  }
  return names;
}

// A value for every flag that sets a field, but --model; none of them its default.
const std::vector<std::string>& EveryFlag() {
  static const auto* const flags = new std::vector<std::string>{
      "--model_name=n",
      "--dtype=bfloat16",
      "--weights=int8",
      "--packed_weights=/w",
      "--chunk_invariant_scans",
      "--device=cuda",
      "--cuda_graphs",
      "--threads=3",
      "--listen=[::1]:0",
      "--metrics_listen=",
      "--metrics_compat=none",
      "--port_file=/p",
      "--tls_cert=/c",
      "--tls_key=/k",
      "--tls_client_ca=/ca",
      "--insecure",
      "--gateway_listen=unix:/g",
      "--gateway_tenant=t",
      "--health_listen=0.0.0.0:8603",
      "--ping_interval=9s",
      "--connection_age=3h",
      "--max_connections=6",
      "--max_connections_per_address=5",
      "--reflection=on",
      "--arena=1.5GiB",
      "--block_tokens=32",
      "--attention_window=1000",
      "--sink_tokens=9",
      "--cache_dtype=int4",
      "--cache_residual_tokens=77",
      "--poison_cache",
      "--check_integrity=true",
      "--fail_step_every=8",
      "--share_prefixes=false",
      "--state_checkpoint_tokens=77",
      "--state_checkpoint_share=0.25",
      "--state_checkpoint_dtype=int8",
      "--aligned_prefill_chunks",
      "--host_tier=2GiB",
      "--disk_tier=/d",
      "--disk_tier_bytes=5MiB",
      "--tier_idle=7s",
      "--copy_bytes_per_step=3MiB",
      "--compact_bytes_per_step=1KiB",
      "--crop_every=9",
      "--always_copy=true",
      "--session_dir=/s",
      "--session_dir_limit=7KiB",
      "--max_running=7",
      "--max_step_tokens=64",
      "--prefill_chunk_tokens=33",
      "--target_step_time=44ms",
      "--scheduling=fcfs",
      "--max_sequence_tokens=999",
      "--max_queue=5",
      "--max_queued_tokens=6000",
      "--max_wait=8s",
      "--tenants=/tenants",
      "--default_max_tokens=12",
      "--draft_tokens=6",
      "--max_logprobs=4",
      "--max_outputs=3",
      "--unread_timeout=9s",
      "--grammar_cache=9MiB",
      "--grammar_timeout=4s",
      "--step_timeout=3m",
      "--start_timeout=2h",
      "--drain_grace=1m30s",
      "--crash_dir=/crash",
      "--audit_log=/audit",
      "--log_level=debug",
      "--log_format=json",
      "--dry_run",
  };
  return *flags;
}

TEST(ConfigTest, WithoutFlagsIsTheDefault) {
  const auto config = Parse({"--model=/m"});
  ASSERT_TRUE(config.ok()) << config.status();
  Config expected;
  expected.model.model_dir = "/m";
  EXPECT_EQ(Values(*config), Values(expected));
}

TEST(ConfigTest, NeedsNoModel) { EXPECT_TRUE(Parse({}).ok()); }

// state_checkpoint_dtype and aligned_prefill_chunks exclude each other, so the flags are parsed one at a time.
TEST(ConfigTest, EveryFlagSetsOneFieldOfItsOwn) {
  const std::vector<std::string> defaults = Values(*Parse({"--model=/m"}));
  std::set<size_t> changed;
  for (const std::string& flag : EveryFlag()) {
    Config config;
    config.model.model_dir = "/m";
    ASSERT_TRUE(ServerFlags(&config).Parse({flag}).ok()) << flag;
    const std::vector<std::string> values = Values(config);
    ASSERT_EQ(values.size(), defaults.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == defaults[i]) continue;
      EXPECT_TRUE(changed.insert(i).second) << flag << " changes " << values[i];
    }
  }
  EXPECT_EQ(changed.size(), EveryFlag().size());
  std::vector<std::string> names = {"model", "flagfile", "list_models", "list_kernels", "version"};
  for (absl::string_view flag : EveryFlag()) names.emplace_back(flag.substr(2, flag.find('=') - 2));
  EXPECT_THAT(Names(defaults), ::testing::UnorderedElementsAreArray(names));
}

TEST(ConfigTest, EveryFlagReachesItsField) {
  Config config;
  ASSERT_TRUE(ServerFlags(&config).Parse(EveryFlag()).ok());
  EXPECT_EQ(config.model.name, "n");
  EXPECT_EQ(config.model.dtype, "bfloat16");
  EXPECT_EQ(config.model.weights, "int8");
  EXPECT_EQ(config.packed_weights, "/w");
  EXPECT_EQ(config.model.chunk_invariant_scans, true);
  EXPECT_EQ(config.model.device, "cuda");
  EXPECT_EQ(config.cuda_graphs, true);
  EXPECT_EQ(config.model.num_threads, 3);
  EXPECT_EQ(config.listen, (Address{"::1", 0}));
  EXPECT_EQ(config.metrics_listen, std::nullopt);
  EXPECT_EQ(config.metrics.vllm_aliases, false);
  EXPECT_EQ(config.port_file, "/p");
  EXPECT_EQ(config.tls.cert, "/c");
  EXPECT_EQ(config.tls.key, "/k");
  EXPECT_EQ(config.tls.client_ca, "/ca");
  EXPECT_EQ(config.insecure, true);
  EXPECT_EQ(config.gateway_listen, (Address{.socket_path = "/g"}));
  EXPECT_EQ(config.gateway_tenant, "t");
  EXPECT_EQ(config.health_listen, (Address{"0.0.0.0", 8603}));
  EXPECT_EQ(config.ping_interval, absl::Seconds(9));
  EXPECT_EQ(config.connection_age, absl::Hours(3));
  EXPECT_EQ(config.connections.max_connections, 6);
  EXPECT_EQ(config.connections.max_connections_per_address, 5);
  EXPECT_EQ(config.reflection, "on");
  EXPECT_EQ(config.arena_bytes, int64_t{3} << 29);
  EXPECT_EQ(config.model.block_tokens, 32);
  EXPECT_EQ(config.model.attention_window, 1000);
  EXPECT_EQ(config.model.sink_tokens, 9);
  EXPECT_EQ(config.model.cache_dtype, "int4");
  EXPECT_EQ(config.model.cache_residual_tokens, 77);
  EXPECT_EQ(config.cache.poison_returned_units, true);
  EXPECT_EQ(config.engine.check_integrity, true);
  EXPECT_EQ(config.engine.fail_step_every, 8);
  EXPECT_EQ(config.engine.scheduler.share_prefixes, false);
  EXPECT_EQ(config.state_checkpoint_tokens, 77);
  EXPECT_EQ(config.cache.state_share, 0.25);
  EXPECT_EQ(config.model.state_checkpoint_dtype, "int8");
  EXPECT_EQ(config.engine.scheduler.aligned_prefill_chunks, true);
  EXPECT_EQ(config.engine.scheduler.swap.host_tier_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.disk_tier.folder, "/d");
  EXPECT_EQ(config.engine.scheduler.prefixes.disk_limit_bytes, 5 << 20);
  EXPECT_EQ(config.engine.scheduler.prefixes.idle, absl::Seconds(7));
  EXPECT_EQ(config.engine.scheduler.swap.copy_bytes_per_step, 3 << 20);
  EXPECT_EQ(config.engine.scheduler.compact_bytes_per_step, 1024);
  EXPECT_EQ(config.engine.scheduler.crop_every, 9);
  EXPECT_EQ(config.engine.scheduler.swap.always_copy, true);
  EXPECT_EQ(config.sessions.folder, "/s");
  EXPECT_EQ(config.sessions.limit_bytes, 7 << 10);
  EXPECT_EQ(config.engine.scheduler.max_running, 7);
  EXPECT_EQ(config.max_step_tokens, 64);
  EXPECT_EQ(config.prefill_chunk_tokens, 33);
  EXPECT_EQ(config.engine.scheduler.target_step_time, absl::Milliseconds(44));
  EXPECT_EQ(config.fair_scheduling, false);
  EXPECT_EQ(config.engine.scheduler.max_sequence_tokens, 999);
  EXPECT_EQ(config.engine.max_queue, 5);
  EXPECT_EQ(config.engine.max_queued_tokens, 6000);
  EXPECT_EQ(config.engine.max_wait, absl::Seconds(8));
  EXPECT_EQ(config.engine.unread_timeout, absl::Seconds(9));
  EXPECT_EQ(config.grammars.cache_bytes, 9 << 20);
  EXPECT_EQ(config.grammars.timeout, absl::Seconds(4));
  EXPECT_EQ(config.watchdog.timeout, absl::Minutes(3));
  EXPECT_EQ(config.start_timeout, absl::Hours(2));
  EXPECT_EQ(config.tenants, "/tenants");
  EXPECT_EQ(config.limits.default_max_tokens, 12);
  EXPECT_EQ(config.limits.default_draft_tokens, 6);
  EXPECT_EQ(config.limits.max_logprobs, 4);
  EXPECT_EQ(config.limits.max_outputs, 3);
  EXPECT_EQ(config.drain_grace, absl::Seconds(90));
  EXPECT_EQ(config.crash_dir, "/crash");
  EXPECT_EQ(config.audit_log, "/audit");
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.log_format, "json");
  EXPECT_EQ(config.model.dry_run, true);
}

TEST(ConfigTest, KeepsTheServersOwnDefaults) {
  const Config config;
  EXPECT_TRUE(config.engine.scheduler.share_prefixes);
  EXPECT_EQ(config.state_checkpoint_tokens, std::nullopt);
  EXPECT_EQ(config.cache.state_share, 0.5);
  EXPECT_EQ(config.engine.scheduler.compact_bytes_per_step, 4 << 20);
  EXPECT_EQ(config.engine.scheduler.swap.copy_bytes_per_step, 256 << 20);
  EXPECT_TRUE(config.engine.scheduler.swap.beside_steps);
  EXPECT_EQ(config.engine.scheduler.prefixes.disk_limit_bytes, int64_t{16} << 30);
  EXPECT_EQ(config.engine.scheduler.prefixes.idle, absl::Seconds(60));
  EXPECT_EQ(config.sessions.limit_bytes, int64_t{16} << 30);
  EXPECT_EQ(config.limits.default_max_tokens, 1024);
}

TEST(ConfigTest, DefaultsFollowTheDevice) {
  struct Case {
    std::vector<std::string> flags;
    int64_t step_tokens, chunk_tokens;
    bool graphs;
  };
  const std::vector<Case> cases = {
      {{"--device=cpu"}, 512, 256, false},
      {{"--device=cuda:3"}, 4096, 2048, true},
      {{"--device=cuda", "--max_step_tokens=1000", "--cuda_graphs=false"}, 1000, 1000, false},
      {{"--device=cuda", "--prefill_chunk_tokens=7"}, 4096, 7, true},
  };
  for (const Case& expected : cases) {
    std::vector<std::string> flags = {"--model=/m"};
    flags.insert(flags.end(), expected.flags.begin(), expected.flags.end());
    const auto config = Parse(flags);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->engine.scheduler.max_step_tokens, expected.step_tokens);
    EXPECT_EQ(config->engine.scheduler.prefill_chunk_tokens, expected.chunk_tokens);
    EXPECT_EQ(config->model.cuda_graphs, expected.graphs);
  }
  for (const auto& [value, positions] :
       std::map<std::string, int64_t>{{"auto", Scheduler::Options::kAutoCheckpoints}, {"0", 0}, {"77", 77}}) {
    EXPECT_EQ(Parse({"--state_checkpoint_tokens=" + value})->engine.scheduler.state_checkpoint_tokens, positions);
  }
  EXPECT_EQ(Parse({})->engine.scheduler.state_checkpoint_tokens, Scheduler::Options::kAutoCheckpoints);
  // Until the device is known, what a GPU takes is not refused.
  Config config = *Parse({"--model=/m", "--prefill_chunk_tokens=1000"});
  SetDeviceDefaults(/*on_gpu=*/false, &config);
  EXPECT_EQ(Validate(config).message(), "--prefill_chunk_tokens: 1000 is more than --max_step_tokens=512");
}

TEST(ConfigTest, ReadsWhatCheckpointsAreStoredIn) {
  const auto config = Parse({"--model=/m", "--state_checkpoint_dtype=int8"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.state_checkpoint_dtype, "int8");
}

TEST(ConfigTest, ReadsAFlagFileAndTheCommandLineWins) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/berth.flags");
  std::ofstream(path) << "# a comment\n--model=/from/file\n--max_queue=9\n";
  const auto config = Parse({absl::StrCat("--flagfile=", path), "--max_queue=11"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.model_dir, "/from/file");
  EXPECT_EQ(config->engine.max_queue, 11);
}

struct BadFlags {
  std::vector<std::string> flags;
  std::string message;  // the whole of it
};

TEST(ConfigTest, RefusesNamingFlagValueAndLimit) {
  const std::vector<BadFlags> table = {
      {{"stray"}, "unexpected argument stray; write flags as --name=value"},
      {{"--dtype=float16"}, "--dtype: float16 is not one of auto, float32, bfloat16"},
      {{"--device=tpu"}, "--device: tpu is not auto, cpu, cuda or cuda:N"},
      {{"--device=cuda:-1"}, "--device: cuda:-1 is not auto, cpu, cuda or cuda:N"},
      {{"--packed_weights="}, "--packed_weights: an empty value is not auto, none or a folder"},
      {{"--weights=fp8"}, "--weights: fp8 is not one of auto, int8, int4"},
      {{"--cache_dtype=float16"}, "--cache_dtype: float16 is not one of auto, int8, int4"},
      {{"--state_checkpoint_dtype=int4"}, "--state_checkpoint_dtype: int4 is not one of auto, int8"},
      {{"--state_checkpoint_dtype=int8", "--aligned_prefill_chunks"},
       "--state_checkpoint_dtype: int8 rounds the states that a prefix hit starts from; --aligned_prefill_chunks needs "
       "them exact"},
      {{"--log_level=loud"}, "--log_level: loud is not one of trace, debug, info, warning, error, off"},
      {{"--log_format=xml"}, "--log_format: xml is not one of text, json"},
      {{"--metrics_compat=tgi"}, "--metrics_compat: tgi is not one of vllm, none"},
      {{"--block_tokens=24"}, "--block_tokens: 24 is not a power of two"},
      {{"--max_running=many"}, "--max_running: many is not a whole number"},
      {{"--max_sequence_tokens=1"}, "--max_sequence_tokens: 1 leaves no room for both a prompt and an output"},
      {{"--aligned_prefill_chunks", "--target_step_time=50ms"},
       "--target_step_time: 50ms cuts chunks by time; --aligned_prefill_chunks needs them at fixed places"},
      {{"--aligned_prefill_chunks", "--max_step_tokens=512", "--prefill_chunk_tokens=256", "--max_running=258"},
       "--prefill_chunk_tokens: 256 is more than --max_step_tokens=512 leaves beside --max_running=258; with "
       "--aligned_prefill_chunks each step must have room for a whole chunk"},
      {{"--max_sequence_tokens=100", "--default_max_tokens=100"},
       "--default_max_tokens: 100 leaves no room for a prompt in --max_sequence_tokens=100"},
      {{"--max_running=64", "--max_step_tokens=63", "--prefill_chunk_tokens=1"},
       "--max_step_tokens: 63 is less than --max_running=64; a step must hold one token of every running sequence"},
      {{"--device=cpu", "--prefill_chunk_tokens=513"},
       "--prefill_chunk_tokens: 513 is more than --max_step_tokens=512"},
      {{"--drain_grace=30"}, "--drain_grace: 30 is not a valid duration; write for example 30s or 500ms"},
      {{"--drain_grace=inf"}, "--drain_grace: inf is outside the range 0 to 24h"},
      {{"--host_tier=much"}, "--host_tier: much is not a size; write for example 512MiB, or 0"},
      {{"--disk_tier=/d"}, "--disk_tier: requires --host_tier, because prefixes pass through host memory"},
      {{"--disk_tier=/d", "--session_dir=/d"}, "--disk_tier: must be another folder than --session_dir"},
      {{"--copy_bytes_per_step=0"}, "--copy_bytes_per_step: 0 is not between 1 byte and 1048576 TiB"},
      {{"--arena=-1GiB"}, "--arena: -1GiB is not a size; write for example 512MiB, or auto"},
      {{"--arena=12XB"}, "--arena: 12XB is not a size; write for example 512MiB, or auto"},
      {{"--arena="}, "--arena: an empty value is not a size; write for example 512MiB, or auto"},
      {{"--arena=0"}, "--arena: 0 is not between 1 byte and 1048576 TiB, or auto"},
      {{"--listen=8600"},
       "--listen: 8600 is not an address: the port is missing; write HOST:PORT, for example 127.0.0.1:8600"},
      {{"--listen=:8600"},
       "--listen: :8600 is not an address: the host is missing; write HOST:PORT, for example 127.0.0.1:8600"},
      {{"--listen=h:65536"},
       "--listen: h:65536 is not an address: port 65536 is not between 0 and 65535; write HOST:PORT, for example "
       "127.0.0.1:8600"},
      {{"--metrics_listen=::1:80"},
       "--metrics_listen: ::1:80 is not an address: an IPv6 address needs brackets; write HOST:PORT, for example "
       "127.0.0.1:8600"},
      {{"--metrics_listen=127.0.0.1:8600"}, "--metrics_listen: 127.0.0.1:8600 is also the address of --listen"},
      {{"--health_listen=127.0.0.1:8601"}, "--health_listen: 127.0.0.1:8601 is also the address of --metrics_listen"},
      {{"--listen=unix:/s", "--gateway_listen=unix:/s", "--gateway_tenant=t"},
       "--gateway_listen: unix:/s is also the address of --listen"},
      {{"--metrics_listen=unix:/s"}, "--metrics_listen: unix:/s is a Unix socket; write host:port"},
      {{"--listen=unix:s"},
       "--listen: unix:s is not an address: the path of a Unix socket begins with /; write HOST:PORT, for example "
       "127.0.0.1:8600"},
      {{"--gateway_listen=127.0.0.1:1"}, "--gateway_listen: requires --gateway_tenant"},
      {{"--gateway_tenant=t"}, "--gateway_tenant: requires --gateway_listen"},
      {{"--gateway_listen=0.0.0.0:1", "--gateway_tenant=t"},
       "--gateway_listen: 0.0.0.0:1 can be reached from the network, and asks for no credential; name a loopback "
       "address or a Unix socket"},
      {{"--tls_cert=/c"}, "--tls_cert: requires --tls_key"},
      {{"--tls_key=/k"}, "--tls_key: requires --tls_cert"},
      {{"--tls_client_ca=/ca"}, "--tls_client_ca: requires --tls_cert and --tls_key"},
      {{"--max_runing=3"}, "unknown flag --max_runing; did you mean --max_running?"},
      {{"--flagfile=/no/such/file"}, "--flagfile: cannot read /no/such/file"},
  };
  for (const BadFlags& row : table) {
    std::vector<std::string> flags = {"--model=/m"};
    flags.insert(flags.end(), row.flags.begin(), row.flags.end());
    const auto config = Parse(flags);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << row.message;
    EXPECT_EQ(config.status().message(), row.message);
  }
}

TEST(ConfigTest, EachRangeEndsWhereItsErrorSays) {
  struct Range {
    std::string flag, below, above, range;
  };
  const std::vector<Range> table = {{"threads", "-1", "4097", "0 to 4096"},
                                    {"ping_interval", "99ms", "25h", "100ms to 24h"},
                                    {"connection_age", "99ms", "337h", "100ms to 336h"},
                                    {"max_connections", "-1", "1048577", "0 to 1048576"},
                                    {"max_connections_per_address", "-1", "1048577", "0 to 1048576"},
                                    {"block_tokens", "0", "1025", "1 to 1024"},
                                    {"attention_window", "-1", "1073741825", "0 to 1073741824"},
                                    {"sink_tokens", "-1", "1048577", "0 to 1048576"},
                                    {"cache_residual_tokens", "-1", "1048577", "0 to 1048576"},
                                    {"state_checkpoint_tokens", "-1", "1048577", "0 to 1048576"},
                                    {"state_checkpoint_share", "-0.1", "1.1", "0 to 1"},
                                    {"tier_idle", "-1s", "25h", "0 to 24h"},
                                    {"max_running", "0", "65537", "1 to 65536"},
                                    {"max_step_tokens", "0", "1048577", "1 to 1048576"},
                                    {"prefill_chunk_tokens", "0", "1048577", "1 to 1048576"},
                                    {"target_step_time", "-1s", "61s", "0 to 1m"},
                                    {"max_sequence_tokens", "-1", "1073741825", "0 to 1073741824"},
                                    {"max_queue", "0", "1048577", "1 to 1048576"},
                                    {"max_queued_tokens", "-1", "1073741825", "0 to 1073741824"},
                                    {"max_wait", "-1s", "25h", "0 to 24h"},
                                    {"default_max_tokens", "-1", "1073741825", "0 to 1073741824"},
                                    {"draft_tokens", "-1", "17", "0 to 16"},
                                    {"max_logprobs", "-1", "1025", "0 to 1024"},
                                    {"max_outputs", "0", "1025", "1 to 1024"},
                                    {"grammar_timeout", "0", "61m", "1ms to 1h"},
                                    {"step_timeout", "-1s", "25h", "0 to 24h"},
                                    {"start_timeout", "-1s", "25h", "0 to 24h"},
                                    {"unread_timeout", "0", "25h", "1ms to 24h"},
                                    {"drain_grace", "-1s", "25h", "0 to 24h"},
                                    {"fail_step_every", "-1", "1048577", "0 to 1048576"},
                                    {"crop_every", "-1", "1048577", "0 to 1048576"}};
  std::set<std::string> with_range;
  for (const std::string& line : Values(Config())) {
    if (absl::StrContains(line, " Range: ")) with_range.insert(Names({line})[0]);
  }
  for (const Range& row : table) {
    for (const std::string& value : {row.below, row.above}) {
      EXPECT_EQ(Parse({absl::StrCat("--", row.flag, "=", value)}).status().message(),
                absl::StrCat("--", row.flag, ": ", value, " is outside the range ", row.range));
    }
    EXPECT_EQ(with_range.erase(row.flag), 1u) << row.flag;
  }
  EXPECT_THAT(with_range, ::testing::IsEmpty());
}

TEST(ConfigTest, TwoFreePortsDoNotContradictEachOther) {
  EXPECT_TRUE(Parse({"--model=/m", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0"}).ok());
}

TEST(ConfigTest, ARenamedFlagNamesItsNewName) {
  Config config;
  const std::string help = HelpText();
  for (const auto& [old_name, new_name] :
       std::vector<std::pair<std::string, std::string>>{{"anchored_chunks", "aligned_prefill_chunks"},
                                                        {"checkpoint_dtype", "state_checkpoint_dtype"},
                                                        {"checkpoint_tokens", "state_checkpoint_tokens"},
                                                        {"compact_per_step", "compact_bytes_per_step"},
                                                        {"copy_per_step", "copy_bytes_per_step"},
                                                        {"stable_scans", "chunk_invariant_scans"},
                                                        {"target_step_ms", "target_step_time"}}) {
    EXPECT_EQ(Parse({"--model=/m", absl::StrCat("--", old_name, "=1")}).status().message(),
              absl::StrCat("--", old_name, " is now --", new_name));
    EXPECT_THAT(help, HasSubstr(absl::StrCat("  --", new_name)));
  }
}

TEST(ConfigTest, FlagsForTestsStandTogetherAtTheEnd) {
  const std::vector<std::string> groups = absl::StrSplit(FlagsMarkdown(), "\n### ");
  EXPECT_THAT(groups.back(), ::testing::StartsWith("For tests\n"));
  EXPECT_THAT(
      Names(absl::StrSplit(groups.back(), '\n')),
      ::testing::ElementsAre("check_integrity", "poison_cache", "fail_step_every", "always_copy", "crop_every"));
}

TEST(ConfigTest, ListingModelsNeedsNoModel) {
  const auto config = Parse({"--list_models"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->list_models);
}

TEST(ConfigTest, ListingKernelsNeedsNoModel) {
  const auto config = Parse({"--list_kernels"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->list_kernels);
}

// Also while the server runs, for a reload.
TEST(ConfigTest, HelpAndVersionAreReturned) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{{"--help"}, {"-h"}}) {
    EXPECT_EQ(Parse(arguments)->printed, HelpText());
  }
  EXPECT_EQ(Parse({"--help=markdown"})->printed, FlagsMarkdown());
  EXPECT_EQ(Parse({"--version"})->printed, Parse({"--model=/m", "--version"})->printed);
  EXPECT_THAT(Parse({"--version"})->printed, HasSubstr("berth-server "));
  EXPECT_EQ(Parse({"--model=/m"})->printed, "");
}

TEST(ConfigTest, HelpNamesEachFlagOnceWithItsDefault) {
  const std::string help = HelpText();
  for (const std::string& flag : EveryFlag()) {
    const std::string entry = absl::StrCat("\n  ", flag.substr(0, flag.find('=')));
    size_t entries = 0;
    for (size_t at = help.find(entry); at != std::string::npos; at = help.find(entry, at + 1)) {
      const char next = help[at + entry.size()];
      entries += next == '=' || next == ' ' || next == '\n';
    }
    EXPECT_EQ(entries, 1u) << flag;
  }
  EXPECT_THAT(help, HasSubstr("Default: 127.0.0.1:8600."));
  EXPECT_THAT(help, HasSubstr("--flagfile=file"));
}

}  // namespace
}  // namespace berth
