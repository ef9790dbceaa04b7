#include "server/storage/session_id.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace berth {
namespace {

TEST(SessionIdTest, AFilesNameReadsBack) {
  const SessionPlace place = {.tenant_hash = TenantHash("t"), .id = "a.b-c_1"};
  EXPECT_EQ(ReadSessionFileName(SessionFileName(place)), place);
  EXPECT_EQ(ReadSessionFileName("s.session"), (SessionPlace{.tenant_hash = "", .id = "s"}));
  const std::string hash = TenantHash("t");
  for (const std::string& name :
       std::vector<std::string>{"s", ".session", "s@" + hash, "@" + hash + ".session", "s@x.session",
                                "s@" + hash + "0.session", "s@@" + hash + ".session", "s@" + hash + ".session.tmp"}) {
    EXPECT_FALSE(ReadSessionFileName(name).has_value()) << name;
  }
  EXPECT_NE(TenantHash("t"), TenantHash("T"));
}

TEST(SessionIdTest, IsAFilesNameAndNoPath) {
  for (const char* id : {"a", "A-b_c.9", "0"}) EXPECT_TRUE(CheckSessionId("id", id).ok()) << id;
  EXPECT_TRUE(CheckSessionId("id", std::string(128, 'x')).ok());
  for (const std::string& id : {std::string(), std::string(129, 'x'), std::string("."), std::string(".."),
                                std::string("../x"), std::string("a/b"), std::string("a\0b", 3), std::string("a b"),
                                std::string(".hidden"), std::string("\xC3\xA4")}) {
    EXPECT_EQ(CheckSessionId("id", id).code(), absl::StatusCode::kInvalidArgument) << id;
  }
}

}  // namespace
}  // namespace berth
