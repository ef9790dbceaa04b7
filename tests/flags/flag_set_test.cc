#include "flags/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum class Shape { kRound, kSquare };

struct Values {
  bool json = false;
  bool loud = true;
  int64_t count = 8;
  uint32_t top = 0;
  std::optional<float> temperature;
  std::optional<absl::Duration> limit;
  absl::Duration grace = absl::Seconds(30);
  std::vector<std::string> stop;
  std::string text = "x";
  int64_t arena = 0;
  int64_t copy = 256 << 20;
  std::string level = "info";
  Shape shape = Shape::kRound;
  Address listen = {"127.0.0.1", 8600};
  std::optional<Address> metrics = Address{"::1", 1};
  std::optional<int64_t> requests;

  FlagSet Flags() {
    FlagSet flags;
    flags.AddGroup("All");
    flags.Add("json", &json, "", "Whether JSON.");
    flags.Add("loud", &loud, "", "Whether loud.");
    flags.Add("count", &count, "n", "How many.");
    flags.Add("top", &top, Between(0, 20), "How many at the top.");
    flags.Add("temperature", &temperature, "t", "How hot.");
    flags.Add("limit", &limit, "time", "How long.");
    flags.Add("grace", &grace, Between(absl::ZeroDuration(), absl::Hours(24)), "How long at the end.");
    flags.Add("stop", &stop, "text", "Where to end.");
    flags.Add("text", &text, "text", "What.");
    flags.AddGroup("Others");
    flags.Add("arena", &arena, Bytes("auto"), "How large.");
    flags.Add("copy", &copy, Bytes(), "How much.");
    flags.Add("level", &level, OneOf({"info", "error"}), "How much is said.");
    flags.Add("shape", &shape, OneOf<Shape>({{"round", Shape::kRound}, {"square", Shape::kSquare}}), "Which shape.");
    flags.Add("listen", &listen, "host:port", "Where.");
    flags.Add("metrics", &metrics, "host:port", "Where else.");
    flags.Add("requests", &requests, AtLeast(1), "How often.");
    flags.AddFlagFile();
    flags.AddRenamed("amount", "count");
    return flags;
  }

  std::string Error(std::vector<std::string> args) { return std::string(Flags().Parse(args).status().message()); }
};

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  std::ofstream(path) << text;
  return path;
}

TEST(FlagSet, ReadsEveryKindOfValue) {
  Values values;
  const auto parsed = values.Flags().Parse(std::vector<std::string>{
      "--json",         "--count",      "9",           "--temperature=0.5", "word",           "--limit=50ms",
      "--stop=a,b",     "--stop",       "c",           "--text=",           "--top=20",       "--grace=1m30s",
      "--arena=1.5GiB", "--copy",       "3KiB",        "--level=error",     "--shape=square", "--listen=[::1]:0",
      "--metrics=",     "--requests=1", "--loud=false"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(values.json);
  EXPECT_FALSE(values.loud);
  EXPECT_EQ(values.count, 9);
  EXPECT_EQ(values.top, 20u);
  EXPECT_EQ(values.temperature, 0.5f);
  EXPECT_EQ(values.limit, absl::Milliseconds(50));
  EXPECT_EQ(values.grace, absl::Seconds(90));
  EXPECT_THAT(values.stop, ElementsAre("a,b", "c"));
  EXPECT_EQ(values.text, "");
  EXPECT_EQ(values.arena, int64_t{3} << 29);
  EXPECT_EQ(values.copy, 3 << 10);
  EXPECT_EQ(values.level, "error");
  EXPECT_EQ(values.shape, Shape::kSquare);
  EXPECT_EQ(values.listen, (Address{"::1", 0}));
  EXPECT_FALSE(values.metrics.has_value());
  EXPECT_EQ(values.requests, 1);
  EXPECT_THAT(parsed->positional, ElementsAre("word"));
}

TEST(FlagSet, AWordMayStandForNoBytes) {
  Values values;
  values.arena = 7;
  ASSERT_TRUE(values.Flags().Parse(std::vector<std::string>{"--arena=auto"}).ok());
  EXPECT_EQ(values.arena, 0);
}

TEST(FlagSet, AutoIsNoValue) {
  std::optional<int64_t> count;
  std::optional<bool> graphs = true;
  FlagSet flags;
  flags.AddGroup("Group");
  flags.Add("count", &count, OrAuto(Between<int64_t>(1, 9)), "Count.");
  flags.Add("graphs", &graphs, OrAuto(""), "Graphs.");
  EXPECT_NE(flags.Markdown().find("| `--count=n` | `auto` | Count. Range: 1 to 9. |"), std::string::npos)
      << flags.Markdown();
  ASSERT_TRUE(flags.Parse(std::vector<std::string>{"--count=3", "--graphs=auto"}).ok());
  EXPECT_EQ(count, 3);
  EXPECT_EQ(graphs, std::nullopt);
  ASSERT_TRUE(flags.Parse(std::vector<std::string>{"--count=auto", "--graphs"}).ok());
  EXPECT_EQ(count, std::nullopt);
  EXPECT_EQ(graphs, true);
  EXPECT_EQ(flags.Parse(std::vector<std::string>{"--count=10"}).status().message(),
            "--count: 10 is outside the range 1 to 9");
}

TEST(FlagSet, LeavesAbsentAndRefusedValuesAlone) {
  Values values;
  ASSERT_TRUE(values.Flags().Parse({}).ok());
  EXPECT_EQ(values.count, 8);
  EXPECT_FALSE(values.temperature.has_value());
  EXPECT_FALSE(values.Flags().Parse(std::vector<std::string>{"--temperature=warm"}).ok());
  EXPECT_FALSE(values.temperature.has_value());
  EXPECT_FALSE(values.Flags().Parse(std::vector<std::string>{"--grace=25h"}).ok());
  EXPECT_EQ(values.grace, absl::Seconds(30));
}

TEST(FlagSet, ABoolTakesAValueOnlyAfterAnEqualsSign) {
  Values values;
  const auto parsed = values.Flags().Parse(std::vector<std::string>{"--json", "false"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(values.json);
  EXPECT_THAT(parsed->positional, ElementsAre("false"));
  ASSERT_TRUE(values.Flags().Parse(std::vector<std::string>{"--json=false"}).ok());
  EXPECT_FALSE(values.json);
}

TEST(FlagSet, TwoDashesEndTheFlags) {
  Values values;
  const auto parsed = values.Flags().Parse(std::vector<std::string>{"--", "--json"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT(parsed->positional, ElementsAre("--json"));
}

TEST(FlagSet, RefusalsNameFlagValueAndLimit) {
  Values values;
  EXPECT_EQ(values.Error({"--nonesuch=1"}), "unknown flag --nonesuch");
  EXPECT_EQ(values.Error({"--cuont=1"}), "unknown flag --cuont; did you mean --count?");
  EXPECT_EQ(values.Error({"--amount=1"}), "--amount is now --count");
  EXPECT_EQ(values.Error({"--amounts=1"}), "unknown flag --amounts; did you mean --count?");
  EXPECT_EQ(values.Error({"-j"}), "unknown flag -j");
  EXPECT_EQ(values.Error({"-count=1"}), "unknown flag -count; did you mean --count?");
  EXPECT_EQ(values.Error({"--count"}), "--count needs a value");
  EXPECT_EQ(values.Error({"--count=1.5"}), "--count: 1.5 is not a whole number");
  EXPECT_EQ(values.Error({"--count="}), "--count: an empty value is not a whole number");
  EXPECT_EQ(values.Error({"--top=-1"}), "--top: -1 is not a whole number of 0 or more");
  EXPECT_EQ(values.Error({"--top=21"}), "--top: 21 is outside the range 0 to 20");
  EXPECT_EQ(values.Error({"--requests=0"}), "--requests: 0 is outside the range 1 or more");
  EXPECT_EQ(values.Error({"--temperature=warm"}), "--temperature: warm is not a number");
  EXPECT_EQ(values.Error({"--limit=50"}), "--limit: 50 is not a valid duration; write for example 30s or 500ms");
  EXPECT_EQ(values.Error({"--grace=-1s"}), "--grace: -1s is outside the range 0 to 24h");
  EXPECT_EQ(values.Error({"--json=maybe"}), "--json: maybe is not true or false");
  EXPECT_EQ(values.Error({"--level=loud"}), "--level: loud is not one of info, error");
  EXPECT_EQ(values.Error({"--arena=12XB"}), "--arena: 12XB is not a size; write for example 512MiB, or auto");
  EXPECT_EQ(values.Error({"--copy=auto"}), "--copy: auto is not a size; write for example 512MiB");
}

TEST(FlagSet, TheCommandLineWinsOverAFlagFile) {
  const std::string path = WriteFile("flags", "# a comment\n\n  --count=5  \n--text=a b\n--json\n");
  Values values;
  const auto parsed = values.Flags().Parse(std::vector<std::string>{"--count=6", "--flagfile", path});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(values.count, 6);
  EXPECT_EQ(values.text, "a b");
  EXPECT_TRUE(values.json);
}

TEST(FlagSet, ErrorsInAFlagFileNameTheLine) {
  Values values;
  const std::string unknown = WriteFile("unknown", "--json\n--cuont=5\n");
  EXPECT_EQ(values.Error({"--flagfile=" + unknown}),
            absl::StrCat("unknown flag --cuont; did you mean --count? (", unknown, ", line 2)"));
  const std::string bad = WriteFile("bad", "--top=99\n");
  EXPECT_EQ(values.Error({"--flagfile=" + bad}),
            absl::StrCat("--top: 99 is outside the range 0 to 20 (", bad, ", line 1)"));
  for (const char* line : {"word", "--", "--help", "--flagfile=other"}) {
    const std::string path = WriteFile("line", line);
    EXPECT_EQ(values.Error({"--flagfile=" + path}),
              absl::StrCat("--flagfile: ", line, " is not --name=value (", path, ", line 1)"));
  }
  EXPECT_EQ(values.Error({"--flagfile=/no/such/file"}), "--flagfile: cannot read /no/such/file");
}

TEST(FlagSet, HelpListsFlagsWithTheirDefaults) {
  Values values;
  const std::string help = values.Flags().Help();
  EXPECT_THAT(help, HasSubstr("All:\n"));
  EXPECT_THAT(help, HasSubstr("  --json                        Whether JSON.\n"));
  EXPECT_THAT(help, HasSubstr("  --loud                        Whether loud. Default: true.\n"));
  EXPECT_THAT(help, HasSubstr("  --count=n                     How many. Default: 8.\n"));
  EXPECT_THAT(help, HasSubstr("  --temperature=t               How hot.\n"));
  EXPECT_THAT(help, HasSubstr("\nOthers:\n"));
  EXPECT_THAT(help, HasSubstr("  --arena=size                  How large. Default: auto.\n"));
  EXPECT_THAT(help, HasSubstr("  --level=info|error            How much is said. Default: info.\n"));
  const auto parsed = values.Flags().Parse(std::vector<std::string>{"--count=9", "--help"});
  EXPECT_TRUE(parsed->help && !parsed->markdown);
  EXPECT_EQ(values.count, 8);
}

TEST(FlagSet, MarkdownIsATableForEachGroup) {
  Values values;
  const std::string text = values.Flags().Markdown();
  EXPECT_THAT(text, HasSubstr("\n### All\n\n| Flag | Default | Description |\n|---|---|---|\n"
                              "| `--json` | `false` | Whether JSON. |\n"));
  EXPECT_THAT(text, HasSubstr("| `--top=n` | `0` | How many at the top. Range: 0 to 20. |\n"));
  EXPECT_THAT(text, HasSubstr("| `--grace=time` | `30s` | How long at the end. Range: 0 to 24h. |\n"));
  EXPECT_THAT(text, HasSubstr("| `--limit=time` |  | How long. |\n"));
  EXPECT_THAT(text, HasSubstr("| `--copy=size` | `256MiB` | How much. |\n"));
  EXPECT_THAT(text, HasSubstr("| `--level=info\\|error` | `info` | How much is said. |\n"));
  EXPECT_THAT(text, HasSubstr("| `--metrics=host:port` | `[::1]:1` | Where else. |\n"));
  EXPECT_TRUE(values.Flags().Parse(std::vector<std::string>{"--help=markdown"})->markdown);
}

}  // namespace
}  // namespace berth
