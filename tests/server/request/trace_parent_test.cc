#include "server/request/trace_parent.h"

#include <gtest/gtest.h>

#include <string>

namespace berth {
namespace {

constexpr char kGood[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParentTest, AcceptsTheStandardsExampleAndLaterVersions) {
  EXPECT_TRUE(IsTraceParent(kGood));
  EXPECT_TRUE(IsTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"));
  EXPECT_TRUE(IsTraceParent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"));
}

TEST(TraceParentTest, RefusesWhatTheStandardRefuses) {
  for (const std::string& bad : {
           std::string(),
           std::string("00"),
           std::string("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),  // the version that cannot be
           std::string("00-00000000000000000000000000000000-b7ad6b7169203331-01"),  // no trace
           std::string("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"),  // no parent
           std::string("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"),  // upper case
           std::string("0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
           std::string("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x"),
           std::string("00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
           std::string(kGood) + "-more",  // version 00 has no more
           std::string(kGood) + "more",
           std::string("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more"),
       }) {
    EXPECT_FALSE(IsTraceParent(bad)) << bad;
  }
  for (size_t length = 0; length < std::string(kGood).size(); ++length) {
    EXPECT_FALSE(IsTraceParent(std::string(kGood).substr(0, length)));
  }
}

}  // namespace
}  // namespace berth
