#include "client/load/options.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace berth::cli {
namespace {

TEST(LoadOptionsTest, EachLimitHasAFlagOfItsOwn) {
  using Limit = std::optional<absl::Duration>;
  const std::vector<std::pair<std::string, Limit GoodputLimits::*>> flags = {{"--limit_ttft", &GoodputLimits::ttft},
                                                                             {"--limit_itl", &GoodputLimits::itl},
                                                                             {"--limit_tpot", &GoodputLimits::tpot},
                                                                             {"--limit_e2e", &GoodputLimits::e2e}};
  for (const auto& [flag, its_limit] : flags) {
    LoadOptions options;
    FlagSet set;
    options.AddTo(&set);
    EXPECT_FALSE(options.limits.any());
    ASSERT_TRUE(set.Parse({absl::StrCat(flag, "=7ms")}).ok()) << flag;
    for (const auto& [other, limit] : flags) {
      EXPECT_EQ(options.limits.*limit, limit == its_limit ? Limit(absl::Milliseconds(7)) : std::nullopt)
          << flag << " and " << other;
    }
    EXPECT_TRUE(options.limits.any()) << flag;
  }
}

}  // namespace
}  // namespace berth::cli
