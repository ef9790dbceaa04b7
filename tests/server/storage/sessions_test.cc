#include "server/storage/sessions.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

// Every call of the protocol gets the same refusal, at once.
TEST(NoSessionsTest, RefusesEverySession) {
  NoSessions sessions;
  const absl::Status refused = sessions.Begin(1, v1::SessionFile());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(), "session_id: this server was started without --session_dir, so it has no sessions");
  std::vector<absl::Status> answers = {sessions.List("tenant").status()};
  sessions.Save(
      "s", "tenant", [](RequestKey) { ADD_FAILURE() << "no request runs"; },
      [&](const auto& session) { answers.push_back(session.status()); });
  sessions.Load("s", "tenant", [&](const auto& content) { answers.push_back(content.status()); });
  sessions.Delete("s", "tenant", [&](const absl::Status& status) { answers.push_back(status); });
  EXPECT_EQ(answers, std::vector<absl::Status>(4, refused));
}

// A tenant can be erased from a server that keeps no sessions.
TEST(NoSessionsTest, HasNothingToErase) {
  NoSessions sessions;
  absl::StatusOr<Sessions::Erased> erased = absl::InternalError("no answer");
  sessions.Erase("tenant", [&](const auto& answer) { erased = answer; });
  ASSERT_TRUE(erased.ok()) << erased.status();
  EXPECT_EQ(erased->num_sessions, 0);
  EXPECT_EQ(erased->bytes, 0);
  EXPECT_EQ(sessions.stats().limit_bytes, 0);
}

}  // namespace
}  // namespace berth
