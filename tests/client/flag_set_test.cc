#include "client/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  bool json = false;
  int64_t count = 8;
  std::optional<float> temperature;
  std::optional<absl::Duration> limit;
  std::vector<std::string> stop;
  std::string text = "x";

  FlagSet Flags() {
    FlagSet flags;
    flags.AddSection("All");
    flags.Add("json", &json, "", "Whether JSON.");
    flags.Add("count", &count, "n", "How many.");
    flags.Add("temperature", &temperature, "t", "How hot.");
    flags.Add("limit", &limit, "time", "How long.");
    flags.Add("stop", &stop, "text", "Where to end.");
    flags.Add("text", &text, "text", "What.");
    return flags;
  }

  std::string Error(std::vector<std::string> args) { return std::string(Flags().Parse(args).status().message()); }
};

TEST(FlagSet, ReadsEveryKindOfValue) {
  Values values;
  const auto parsed = values.Flags().Parse(std::vector<std::string>{
      "--json", "--count", "9", "--temperature=0.5", "word", "--limit=50ms", "--stop=a,b", "--stop", "c", "--text="});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(values.json);
  EXPECT_EQ(values.count, 9);
  EXPECT_EQ(values.temperature, 0.5f);
  EXPECT_EQ(values.limit, absl::Milliseconds(50));
  EXPECT_THAT(values.stop, ElementsAre("a,b", "c"));
  EXPECT_EQ(values.text, "");
  EXPECT_THAT(parsed->positional, ElementsAre("word"));
}

TEST(FlagSet, LeavesAbsentValuesAlone) {
  Values values;
  ASSERT_TRUE(values.Flags().Parse({}).ok());
  EXPECT_EQ(values.count, 8);
  EXPECT_FALSE(values.temperature.has_value());
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

TEST(FlagSet, RefusalsNameFlagAndValue) {
  Values values;
  EXPECT_EQ(values.Error({"--nonesuch=1"}), "unknown flag --nonesuch");
  EXPECT_EQ(values.Error({"-j"}), "unknown flag -j");
  EXPECT_EQ(values.Error({"--count"}), "--count needs a value");
  EXPECT_EQ(values.Error({"--count=1.5"}), "--count=1.5: expected a whole number");
  EXPECT_EQ(values.Error({"--temperature=warm"}), "--temperature=warm: expected a number");
  EXPECT_EQ(values.Error({"--limit=50"}), "--limit=50: expected a duration such as 30s or 500ms");
  EXPECT_EQ(values.Error({"--json=maybe"}), "--json=maybe: expected true or false");
}

TEST(FlagSet, HelpListsFlagsWithTheirDefaults) {
  Values values;
  const std::string help = values.Flags().Help();
  EXPECT_THAT(help, HasSubstr("All:\n"));
  EXPECT_THAT(help, HasSubstr("  --count=n                 How many. Default: 8.\n"));
  EXPECT_THAT(help, HasSubstr("  --temperature=t           How hot.\n"));
  EXPECT_TRUE(values.Flags().Parse(std::vector<std::string>{"--help"})->help);
}

}  // namespace
}  // namespace berth::cli
