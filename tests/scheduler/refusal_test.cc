#include "scheduler/refusal.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace berth {
namespace {

TEST(RefusalTest, AStatusCarriesEveryField) {
  const Refusal refusal = {.reason = RefusalReason::kTenantQueue,
                           .retry_after = absl::Milliseconds(1500),
                           .setting = "queued_requests",
                           .limit = "3",
                           .value = "4",
                           .tenant = "two\nlines\n"};
  const absl::Status status = RefusedError(refusal, "too many");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "too many");
  ASSERT_TRUE(RefusalOf(status).has_value());
  EXPECT_EQ(*RefusalOf(status), refusal);
}

TEST(RefusalTest, TellsNoTenantFromTheTenantWithoutAName) {
  EXPECT_EQ(RefusalOf(RefusedError({}, ""))->tenant, std::nullopt);
  EXPECT_EQ(RefusalOf(RefusedError({.tenant = ""}, ""))->tenant, "");
}

TEST(RefusalTest, RoundsTheRetryUpSoThatItIsNotTooEarly) {
  const auto rounded = [](absl::Duration wait) {
    return RefusalOf(RefusedError({.retry_after = wait}, ""))->retry_after;
  };
  EXPECT_EQ(rounded(absl::Microseconds(1)), absl::Milliseconds(1));
  EXPECT_EQ(rounded(absl::Microseconds(2000)), absl::Milliseconds(2));
  EXPECT_EQ(rounded(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(rounded(-absl::Seconds(1)), absl::ZeroDuration());
  EXPECT_EQ(rounded(absl::InfiniteDuration()), absl::Hours(1));
}

TEST(RefusalTest, OtherErrorsAreNone) {
  EXPECT_EQ(RefusalOf(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(RefusalOf(absl::ResourceExhaustedError("the disk is full")), std::nullopt);
}

TEST(RefusalTest, EveryReasonHasANameOfItsOwn) {
  std::set<std::string> names;
  for (absl::string_view name : kRefusalReasons) {
    EXPECT_FALSE(name.empty());
    EXPECT_TRUE(names.insert(std::string(name)).second) << name;
  }
  EXPECT_EQ(names.size(), kNumRefusalReasons);
}

}  // namespace
}  // namespace berth
