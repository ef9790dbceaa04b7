#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

// Flags are global: what a test sets is put back when it ends.
absl::StatusOr<Config> Parse(std::vector<std::string> arguments) {
  absl::FlagSaver saver;
  arguments.insert(arguments.begin(), "berth");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return ParseCommandLine(static_cast<int>(arguments.size()), argv.data());
}

TEST(ConfigTest, WithoutFlagsIsTheDefault) {
  const auto config = Parse({"--model=/m"});
  ASSERT_TRUE(config.ok()) << config.status();
  Config expected;
  expected.model_dir = "/m";
  EXPECT_EQ(*config, expected);
}

TEST(ConfigTest, EveryFlagReachesItsField) {
  const auto config = Parse({"--model",
                             "/m",
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
                             "--arena=1.5GiB",
                             "--block_tokens=32",
                             "--attention_window=1000",
                             "--sink_tokens=9",
                             "--cache_dtype=int4",
                             "--cache_residual_tokens=77",
                             "--poison_cache",
                             "--check_integrity=true",
                             "--crop_every=9",
                             "--share_prefixes=false",
                             "--state_checkpoint_tokens=77",
                             "--aligned_prefill_chunks",
                             "--compact_bytes_per_step=1KiB",
                             "--host_tier=2GiB",
                             "--copy_bytes_per_step=3MiB",
                             "--disk_tier=/d",
                             "--disk_tier_bytes=5MiB",
                             "--tier_idle=7s",
                             "--session_dir=/s",
                             "--session_dir_limit=7KiB",
                             "--max_running=7",
                             "--max_step_tokens=64",
                             "--prefill_chunk_tokens=33",
                             "--max_sequence_tokens=999",
                             "--max_queue=5",
                             "--default_max_tokens=12",
                             "--max_logprobs=4",
                             "--draft_tokens=6",
                             "--max_outputs=3",
                             "--drain_grace=1m30s",
                             "--log_level=debug",
                             "--log_format=json"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, (Config{.model_dir = "/m",
                             .model_name = "n",
                             .dtype = "bfloat16",
                             .weights = "int8",
                             .packed_weights = "/w",
                             .chunk_invariant_scans = true,
                             .device = "cuda",
                             .cuda_graphs = true,
                             .num_threads = 3,
                             .listen = "[::1]:0",
                             .metrics_listen = "",
                             .metrics_compat = "none",
                             .port_file = "/p",
                             .arena_bytes = 1610612736,
                             .block_tokens = 32,
                             .attention_window = 1000,
                             .sink_tokens = 9,
                             .cache_dtype = "int4",
                             .cache_residual_tokens = 77,
                             .poison_cache = true,
                             .check_integrity = true,
                             .share_prefixes = false,
                             .state_checkpoint_tokens = 77,
                             .aligned_prefill_chunks = true,
                             .compact_bytes_per_step = 1024,
                             .host_tier_bytes = int64_t{2} << 30,
                             .copy_bytes_per_step = 3 << 20,
                             .disk_tier = "/d",
                             .disk_tier_bytes = 5 << 20,
                             .tier_idle = absl::Seconds(7),
                             .crop_every = 9,
                             .session_dir = "/s",
                             .session_dir_limit = 7 << 10,
                             .max_running = 7,
                             .max_step_tokens = 64,
                             .prefill_chunk_tokens = 33,
                             .max_sequence_tokens = 999,
                             .max_queue = 5,
                             .default_max_tokens = 12,
                             .draft_tokens = 6,
                             .max_logprobs = 4,
                             .max_outputs = 3,
                             .drain_grace = absl::Seconds(90),
                             .log_level = "debug",
                             .log_format = "json"}));
}

TEST(ConfigTest, ReadsWhatCheckpointsAreStoredIn) {
  const auto config = Parse({"--model=/m", "--state_checkpoint_dtype=int8"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->state_checkpoint_dtype, "int8");
}

TEST(ConfigTest, ReadsAFlagFileAndTheCommandLineWins) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/berth.flags");
  std::ofstream(path) << "# a comment\n--model=/from/file\n--max_queue=9\n";
  const auto config = Parse({absl::StrCat("--flagfile=", path), "--max_queue=11"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_dir, "/from/file");
  EXPECT_EQ(config->max_queue, 11);
}

struct BadFlags {
  std::vector<std::string> flags;
  std::string message;  // the whole of it
};

TEST(ConfigTest, RefusesNamingFlagValueAndLimit) {
  const std::vector<BadFlags> table = {
      {{"--model="}, "--model: missing: name the folder of a Hugging Face checkpoint"},
      {{"stray"}, "unexpected argument 'stray': every value belongs to a flag, as --model=DIR"},
      {{"--dtype=float16"}, "--dtype: 'float16' is none of auto, float32, bfloat16"},
      {{"--device=tpu"}, "--device: 'tpu' is none of cpu, cuda"},
      {{"--packed_weights="}, "--packed_weights: empty: auto, none or a folder"},
      {{"--weights=fp8"}, "--weights: 'fp8' is none of auto, int8, int4"},
      {{"--cache_dtype=float16"}, "--cache_dtype: 'float16' is none of auto, int8, int4"},
      {{"--state_checkpoint_dtype=int4"}, "--state_checkpoint_dtype: 'int4' is none of auto, int8"},
      {{"--state_checkpoint_dtype=int8", "--aligned_prefill_chunks"},
       "--state_checkpoint_dtype: 'int8' rounds what a hit starts from; with --aligned_prefill_chunks a hit gives the "
       "bits of a cold run"},
      {{"--attention_window=-1"}, "--attention_window: -1 is outside [0, 1073741824]"},
      {{"--sink_tokens=1048577"}, "--sink_tokens: 1048577 is outside [0, 1048576]"},
      {{"--cache_residual_tokens=-1"}, "--cache_residual_tokens: -1 is outside [0, 1048576]"},
      {{"--log_level=loud"}, "--log_level: 'loud' is none of trace, debug, info, warning, error, off"},
      {{"--log_format=xml"}, "--log_format: 'xml' is none of text, json"},
      {{"--metrics_compat=tgi"}, "--metrics_compat: 'tgi' is none of vllm, none"},
      {{"--threads=-1"}, "--threads: -1 is outside [0, 4096]"},
      {{"--block_tokens=0"}, "--block_tokens: 0 is outside [1, 1024]"},
      {{"--block_tokens=24"}, "--block_tokens: 24 is no power of two"},
      {{"--block_tokens=2048"}, "--block_tokens: 2048 is outside [1, 1024]"},
      {{"--max_running=0"}, "--max_running: 0 is outside [1, 65536]"},
      {{"--max_queue=0"}, "--max_queue: 0 is outside [1, 1048576]"},
      {{"--max_sequence_tokens=-5"}, "--max_sequence_tokens: -5 is outside [0, 1073741824]"},
      {{"--max_sequence_tokens=1"}, "--max_sequence_tokens: 1 leaves no room for a prompt and an output"},
      {{"--default_max_tokens=-1"}, "--default_max_tokens: -1 is outside [0, 1073741824]"},
      {{"--max_sequence_tokens=100", "--default_max_tokens=100"},
       "--default_max_tokens: 100 leaves no room for a prompt in --max_sequence_tokens=100"},
      {{"--max_logprobs=5000"}, "--max_logprobs: 5000 is outside [0, 1024]"},
      {{"--max_outputs=0"}, "--max_outputs: 0 is outside [1, 1024]"},
      {{"--max_running=64", "--max_step_tokens=63", "--prefill_chunk_tokens=1"},
       "--max_step_tokens: 63 is less than --max_running=64: a step must hold a token of every running sequence"},
      {{"--prefill_chunk_tokens=513"}, "--prefill_chunk_tokens: 513 is more than --max_step_tokens=512"},
      {{"--drain_grace=30"}, "--drain_grace: '30' is no duration: write a number and a unit, as 30s or 2m"},
      {{"--drain_grace=-1s"}, "--drain_grace: -1s is outside [0, 24h]"},
      {{"--drain_grace=inf"}, "--drain_grace: inf is outside [0, 24h]"},
      {{"--host_tier=much"}, "--host_tier: 'much' is no size: write a number and a unit, as 512MiB or 8GiB, or 0"},
      {{"--disk_tier=/d"}, "--disk_tier: needs --host_tier: prefixes come and go through host memory"},
      {{"--tier_idle=-1s"}, "--tier_idle: -1s is outside [0, 24h]"},
      {{"--copy_bytes_per_step=0"}, "--copy_bytes_per_step: '0' is outside [1 byte, 1048576 TiB]"},
      {{"--arena=-1GiB"}, "--arena: '-1GiB' is no size: write a number and a unit, as 512MiB or 8GiB, or auto"},
      {{"--arena=lots"}, "--arena: 'lots' is no size: write a number and a unit, as 512MiB or 8GiB, or auto"},
      {{"--arena=0"}, "--arena: '0' is outside [1 byte, 1048576 TiB], or auto"},
      {{"--listen=8600"}, "--listen: '8600' is no address: it names no port; write HOST:PORT, as 127.0.0.1:8600"},
      {{"--listen=:8600"}, "--listen: ':8600' is no address: it names no host; write HOST:PORT, as 127.0.0.1:8600"},
      {{"--listen=h:65536"},
       "--listen: 'h:65536' is no address: port '65536' is outside [0, 65535]; write HOST:PORT, as 127.0.0.1:8600"},
      {{"--metrics_listen=::1:80"},
       "--metrics_listen: '::1:80' is no address: IPv6 needs brackets; write HOST:PORT, as 127.0.0.1:8600"},
      {{"--metrics_listen=127.0.0.1:8600"},
       "--metrics_listen: '127.0.0.1:8600' is --listen's address too; two servers cannot share it"},
  };
  for (const BadFlags& row : table) {
    std::vector<std::string> flags = {"--model=/m"};
    flags.insert(flags.end(), row.flags.begin(), row.flags.end());
    const auto config = Parse(flags);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << row.message;
    EXPECT_EQ(config.status().message(), row.message);
  }
}

TEST(ConfigTest, TwoFreePortsDoNotContradictEachOther) {
  EXPECT_TRUE(Parse({"--model=/m", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0"}).ok());
}

TEST(ConfigDeathTest, UnknownFlagsAndUnparsableValuesExitWithALine) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(Parse({"--model=/m", "--max_runing=3"}).IgnoreError(), ExitedWithCode(1), "max_runing");
  EXPECT_EXIT(Parse({"--model=/m", "--max_running=many"}).IgnoreError(), ExitedWithCode(1), "many.*max_running");
  EXPECT_EXIT(Parse({"--flagfile=/no/such/file"}).IgnoreError(), ExitedWithCode(1), "/no/such/file");
}

TEST(ConfigDeathTest, HelpAndVersionExitWithZero) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(Parse({"--helpfull"}).IgnoreError(), ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--help"}).IgnoreError(), ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--model=/m", "--version"}).IgnoreError(), ExitedWithCode(0), "");
}

TEST(ConfigTest, HelpNamesEachOfOurFlagsOnceWithItsDefaultAndNoOthers) {
  const std::string help = HelpText();
  int ours = 0;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (name == "flagfile") continue;  // Abseil's, and listed
    const bool is_ours = absl::EndsWith(flag->Filename(), "server/config.cc");
    const std::string entry = absl::StrCat("  --", name, "=", flag->DefaultValue());
    const size_t first = help.find(entry);
    EXPECT_EQ(first != std::string::npos && help.find(entry, first + 1) == std::string::npos, is_ours) << name;
    ours += is_ours;
  }
  EXPECT_EQ(ours, 46);
  EXPECT_THAT(help, HasSubstr("--listen=127.0.0.1:8600"));
}

}  // namespace
}  // namespace berth
