#include "client/load/stream_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Four tokens 10 to 13 in three messages; 3 prompt tokens.
std::vector<v1::GenerateResponse> GoodStream() {
  std::vector<v1::GenerateResponse> messages(3);
  messages[0].set_request_id("r");
  messages[0].add_token_ids(10);
  messages[1].add_token_ids(11);
  messages[1].add_token_ids(12);
  messages[2].add_token_ids(13);
  messages[2].set_finish_reason(v1::FINISH_REASON_LENGTH);
  uint32_t counted = 0;
  for (v1::GenerateResponse& message : messages) {
    message.mutable_usage()->set_prompt_tokens(3);
    message.mutable_usage()->set_completion_tokens(counted += message.token_ids_size());
  }
  return messages;
}

const std::vector<int32_t> kReference = {10, 11, 12, 13};

std::vector<std::string> Faults(const std::vector<v1::GenerateResponse>& messages) {
  StreamCheck check({.output_tokens = 4, .prompt_tokens = 3, .reference = &kReference});
  for (const v1::GenerateResponse& message : messages) check.OnMessage(message);
  check.OnEnd();
  return check.faults();
}

TEST(StreamCheck, AGoodStreamHasNoFault) { EXPECT_THAT(Faults(GoodStream()), IsEmpty()); }

TEST(StreamCheck, AnEmptyMessageIsNoFault) {
  auto messages = GoodStream();
  v1::GenerateResponse empty;
  *empty.mutable_usage() = messages[0].usage();
  messages.insert(messages.begin() + 1, empty);
  EXPECT_THAT(Faults(messages), IsEmpty());
}

TEST(StreamCheck, FindsALostMessage) {
  auto messages = GoodStream();
  messages.erase(messages.begin() + 1);
  const auto faults = Faults(messages);
  EXPECT_THAT(faults,
              Contains("message 2: carries 1 tokens, but its usage goes from 1 to 4 output tokens: lost tokens"));
  EXPECT_THAT(faults, Contains("received 2 tokens, asked for 4"));
}

TEST(StreamCheck, FindsALostTokenInsideAMessage) {
  auto messages = GoodStream();
  messages[1].mutable_token_ids()->RemoveLast();
  EXPECT_THAT(Faults(messages), Contains(HasSubstr("lost tokens")));
}

TEST(StreamCheck, FindsARepeatedMessage) {
  auto messages = GoodStream();
  messages.insert(messages.begin() + 1, messages[1]);
  EXPECT_THAT(Faults(messages), Contains(HasSubstr("repeated tokens")));
}

TEST(StreamCheck, FindsARepeatedFirstAndLastMessage) {
  auto first = GoodStream();
  first.insert(first.begin(), first[0]);
  EXPECT_THAT(Faults(first), Contains(HasSubstr("request_id is 'r' after the first message")));
  auto last = GoodStream();
  last.push_back(last[2]);
  EXPECT_THAT(Faults(last), Contains("message 4: comes after the one with the finish reason"));
}

TEST(StreamCheck, FindsALostLastMessage) {
  auto messages = GoodStream();
  messages.pop_back();
  EXPECT_THAT(Faults(messages), Contains(HasSubstr("expected FINISH_REASON_LENGTH")));
}

// A server that loses a token before it counts: only the reference can tell.
TEST(StreamCheck, FindsAnotherTokenThanAlone) {
  auto messages = GoodStream();
  messages[1].set_token_ids(1, 99);
  EXPECT_THAT(Faults(messages), ElementsAre("output token 2 is 99, but 12 when the request was alone"));
}

TEST(StreamCheck, FindsAWrongPromptCount) {
  auto messages = GoodStream();
  messages[2].mutable_usage()->set_prompt_tokens(4);
  EXPECT_THAT(Faults(messages), ElementsAre("message 3: usage counts 4 prompt tokens, expected 3"));
}

TEST(StreamCheck, FindsAnEmptyStream) {
  EXPECT_THAT(Faults({}), Contains("output token 0 is the end, but 10 when the request was alone"));
}

TEST(StreamCheck, KeepsFewFaultsAndTheLast) {
  StreamCheck check({.output_tokens = 1000});
  for (int i = 0; i < 100; ++i) check.OnMessage(GoodStream()[2]);
  check.OnEnd();
  ASSERT_THAT(check.faults(), SizeIs(4));
  EXPECT_EQ(check.faults().back(), "received 100 tokens, asked for 1000");
}

}  // namespace
}  // namespace berth::cli
