// What a client leaves unread: messages are joined, the request is paused, and in the end its stream ends.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/delivery/output_assembler.h"
#include "server/delivery/request_output.h"
#include "tests/server/delivery/request_output_test.h"

namespace berth {
namespace {

TEST_F(RequestOutputTest, CoalescesWhatComesDuringAWrite) {
  SendAll("abcd");
  ASSERT_EQ(writer_.messages.size(), 1u);
  EXPECT_EQ(writer_.messages[0].text(), "a");
  EXPECT_EQ(writer_.messages[0].request_id(), "id");
  Written();
  ASSERT_EQ(writer_.messages.size(), 2u);
  EXPECT_EQ(writer_.messages[1].text(), "bcd");
  EXPECT_EQ(writer_.messages[1].request_id(), "");
  EXPECT_EQ(writer_.messages[1].usage().completion_tokens(), 4u);
  Written();
  EXPECT_FALSE(writer_.writing);
  EXPECT_TRUE(Send('e'));
  EXPECT_TRUE(writer_.writing);
}

TEST_F(RequestOutputTest, EndsAStreamThatIsNotRead) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  options_.max_undelivered_bytes = 10000;
  int sent = 0;
  while (Send('a')) ASSERT_LT(++sent, 1000);
  EXPECT_GT(sent, 100);
  EXPECT_EQ(undelivered->load().ended, 1);
  EXPECT_EQ(cancels_, std::vector<FinishReason>{FinishReason::kUnread});
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].reason, FinishReason::kUnread);
  EXPECT_EQ(ended_[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(undelivered->load().bytes, 100) << "what waited is dropped; the write in flight is gRPC's";
  EXPECT_FALSE(writer_.ended);
  Written();
  ASSERT_TRUE(writer_.ended);
  EXPECT_EQ(writer_.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(writer_.Text(), "a");
  EXPECT_EQ(undelivered->load().bytes, 0);
}

TEST_F(RequestOutputTest, PausesAtAQuarterOfTheLimitAndContinuesAtAnEighth) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  options_.max_undelivered_bytes = 10000;
  while (pauses_.empty()) ASSERT_TRUE(Send('a'));
  EXPECT_GT(undelivered->load().bytes, 2500);
  EXPECT_LT(undelivered->load().bytes, 2600);
  ASSERT_TRUE(Send('a')) << "the step under way may bring more";
  Written();  // the first token; what waits goes out in one message
  EXPECT_EQ(pauses_, std::vector<bool>{true}) << "nearly all is still unread";
  Written();
  EXPECT_EQ(pauses_, (std::vector<bool>{true, false}));
  EXPECT_EQ(undelivered->load().bytes, 0);
  EXPECT_TRUE(cancels_.empty());
  while (pauses_.size() == 2) ASSERT_TRUE(Send('a'));
  EXPECT_EQ(pauses_, (std::vector<bool>{true, false, true})) << "as often as it takes";
}

TEST_F(RequestOutputTest, TheWriterCountsWhatIsUnreadAfterTheEnd) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  SendAll("abcd");
  const int64_t unread = undelivered->load().bytes;
  EXPECT_GT(unread, 100);
  EXPECT_EQ(writer_.unread, 0) << "the output counts while the request runs";
  EXPECT_FALSE(SendEnd(FinishReason::kLength));
  EXPECT_EQ(writer_.unread, unread);
  EXPECT_EQ(undelivered->load().bytes, 0);
  EXPECT_FALSE(writer_.ended) << "the first write is in flight";
  Written();
  EXPECT_TRUE(writer_.ended);
  EXPECT_EQ(undelivered->load().bytes, 0);
  Forget();
  EXPECT_EQ(undelivered->load().bytes, 0);
}

TEST_F(RequestOutputTest, TheEngineEndsAPauseThatIsTooLong) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  options_.max_undelivered_bytes = 10000;
  while (pauses_.empty()) ASSERT_TRUE(Send('a'));
  EXPECT_FALSE(SendEnd(FinishReason::kUnread));
  EXPECT_EQ(undelivered->load().ended, 1);
  EXPECT_LT(undelivered->load().bytes, 100) << "what waited is dropped";
  EXPECT_TRUE(cancels_.empty()) << "the engine has let go of it already";
  Written();
  EXPECT_EQ(pauses_, std::vector<bool>{true}) << "a request that ended does not continue";
  ASSERT_TRUE(writer_.ended);
  EXPECT_EQ(writer_.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(writer_.Text(), "a");
}

TEST_F(RequestOutputTest, WhatGoesOutAtTheEndOnlyIsNotPaused) {
  for (const bool stream : {false, true}) {
    options_.stream = stream;
    options_.output.deliver_at_end = stream;  // beams
    options_.max_undelivered_bytes = 10000;
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(Send('a'));
    EXPECT_TRUE(pauses_.empty());
    Forget();
  }
}

// Its client cannot read it before, so it must not end the streams of others.
TEST_F(RequestOutputTest, WhatGoesOutAtTheEndOnlyIsNotUnread) {
  for (const bool stream : {false, true}) {
    const auto undelivered = std::make_shared<Undelivered>(100);
    options_.undelivered = undelivered;
    options_.stream = stream;
    options_.output.deliver_at_end = stream;  // beams
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(Send('a'));
    EXPECT_EQ(undelivered->load().bytes, 0);
    undelivered->Add(101);  // of others
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(Send('a')) << "the limit of a server that holds too much";
    Forget();
    EXPECT_EQ(undelivered->load().bytes, 101);
  }
}

TEST_F(RequestOutputTest, LogprobsCountInWhatIsNotRead) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  options_.output.logprobs = true;
  TokenEvent event = Event('a' - ' ', FinishReason::kNone);
  event.top.resize(20);
  output().OnEvent(event, now_);
  EXPECT_GT(undelivered->load().bytes, 20 * 40);
}

// A client could read none of it before.
TEST_F(RequestOutputTest, WhatComesAllAtOnceOnlyPauses) {
  enum Kind { kPromptLogprobs, kReplayed, kSaved };
  for (const Kind kind : {kPromptLogprobs, kReplayed, kSaved}) {
    SCOPED_TRACE(kind);
    const auto undelivered = std::make_shared<Undelivered>(1 << 30);
    options_.undelivered = undelivered;
    options_.max_undelivered_bytes = 10000;
    options_.output.saved_only = kind == kSaved;
    writer_ = FakeWriter();
    pauses_.clear();
    for (int i = 0; i < 500; ++i) {
      TokenEvent event = Event('a' - ' ', FinishReason::kNone);
      event.times = Times();
      event.replayed = kind == kReplayed;
      if (kind == kPromptLogprobs && i == 0) {
        event.prompt_logprobs = {.entries_per_token = 3, .entries = std::vector<TokenLogprob>(600)};
      }
      ASSERT_TRUE(output().OnEvent(event, now_));
      if (kind == kPromptLogprobs) break;
    }
    if (kind == kSaved) output().OnSaved({.num_tokens = 500}, now_);
    EXPECT_GT(undelivered->load().bytes, 10000);
    EXPECT_EQ(pauses_, std::vector<bool>{true});
    while (writer_.writing) Written();
    EXPECT_EQ(pauses_, (std::vector<bool>{true, false}));
    EXPECT_EQ(undelivered->load().bytes, 0);
    options_.output.saved_only = false;
    Forget();
  }
}

TEST_F(RequestOutputTest, WhatComesAllAtOnceEndsWhileTheServerHoldsTooMuch) {
  const auto undelivered = std::make_shared<Undelivered>(1000);
  options_.undelivered = undelivered;
  options_.max_undelivered_bytes = 100000;
  undelivered->Add(1001);  // of others
  int sent = 0;
  TokenEvent event = Event('a' - ' ', FinishReason::kNone);
  event.replayed = true;
  while (output().OnEvent(event, now_)) ASSERT_LT(++sent, 10000);
  EXPECT_GT(sent, 2000);
  EXPECT_EQ(undelivered->load().ended, 1);
}

TEST_F(RequestOutputTest, WhatComesAllAtOnceGivesNoRoomToTheRest) {
  options_.max_undelivered_bytes = 10000;
  for (int i = 0; i < 500; ++i) {
    TokenEvent event = Event('a' - ' ', FinishReason::kNone);
    event.replayed = true;
    ASSERT_TRUE(output().OnEvent(event, now_));
  }
  int sent = 0;
  while (Send('a')) ASSERT_LT(++sent, 1000);
  EXPECT_GT(sent, 100);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].reason, FinishReason::kUnread);
}

TEST_F(RequestOutputTest, BeamsThatAreTooLongAreNotBlamedOnTheReader) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  options_.max_undelivered_bytes = 10000;
  options_.output.deliver_at_end = true;
  int sent = 0;
  while (Send('a')) ASSERT_LT(++sent, 10000);
  EXPECT_EQ(undelivered->load().ended, 0);
  EXPECT_EQ(cancels_, std::vector<FinishReason>{FinishReason::kCancelled});
  ASSERT_TRUE(writer_.ended);
  EXPECT_EQ(writer_.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(writer_.Text(), "");
}

TEST_F(RequestOutputTest, AReaderThatKeepsUpIsNeverEnded) {
  const auto undelivered = std::make_shared<Undelivered>(100);
  options_.undelivered = undelivered;
  options_.max_undelivered_bytes = 100;
  undelivered->Add(1000);  // of others
  for (int i = 0; i < 10000; ++i) {
    ASSERT_TRUE(Send('a'));
    Written();
  }
  EXPECT_EQ(undelivered->load().bytes, 1000);
}

TEST_F(RequestOutputTest, WhileTheServerHoldsTooMuchAStreamThatIsNotReadEndsEarlier) {
  const auto undelivered = std::make_shared<Undelivered>(1000);
  options_.undelivered = undelivered;
  undelivered->Add(1001);  // of others
  int64_t most = 0;
  int sent = 0;
  while (Send('a')) {
    ASSERT_LT(++sent, 10000);
    most = std::max(most, undelivered->load().bytes - 1001);
  }
  EXPECT_LE(most, RequestOutput::kSmallBacklogBytes);
  EXPECT_GT(most, RequestOutput::kSmallBacklogBytes / 2);
  EXPECT_EQ(undelivered->load().ended, 1);
}

TEST_F(RequestOutputTest, EndsAnAnswerThatFitsInNoMessage) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  options_.stream = false;
  options_.output.logprobs = true;
  TokenEvent event = Event('a' - ' ', FinishReason::kNone);
  event.top.resize(1000);
  int sent = 0;
  while (output().OnEvent(event, now_)) ASSERT_LT(++sent, 10000);
  ASSERT_TRUE(writer_.ended);
  EXPECT_EQ(writer_.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(writer_.messages.empty());
  EXPECT_EQ(cancels_, std::vector<FinishReason>{FinishReason::kCancelled});
  EXPECT_EQ(undelivered->load().bytes, 0);
  EXPECT_EQ(undelivered->load().ended, 0);
}

TEST_F(RequestOutputTest, AnOutputThatGoesReturnsItsBytes) {
  const auto undelivered = std::make_shared<Undelivered>(1 << 30);
  options_.undelivered = undelivered;
  SendAll("abc");
  EXPECT_GT(undelivered->load().bytes, 0);
  Forget();
  EXPECT_EQ(undelivered->load().bytes, 0);
}

TEST_F(RequestOutputTest, FailedWriteCancelsAndWritesNoMore) {
  SendAll("abc");
  Written(/*ok=*/false);
  EXPECT_EQ(cancels_, std::vector<FinishReason>{FinishReason::kCancelled});
  EXPECT_FALSE(writer_.writing);
  SendAll("def");
  EXPECT_EQ(writer_.messages.size(), 1u);
  SendEnd(FinishReason::kCancelled);
  EXPECT_TRUE(writer_.ended);
  EXPECT_EQ(writer_.messages.size(), 1u);
  EXPECT_EQ(writer_.status.code(), absl::StatusCode::kCancelled);
}

TEST_F(RequestOutputTest, SlowReaderGetsAllInMessagesOfBoundedSize) {
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(Send('x'));
  EXPECT_EQ(writer_.messages.size(), 1u);
  SendEnd(FinishReason::kLength);
  while (!writer_.ended) Written();
  EXPECT_EQ(writer_.Tokens().size(), 3000u);
  for (const v1::GenerateResponse& message : writer_.messages) EXPECT_LE(message.token_ids_size(), 1024);
  EXPECT_EQ(writer_.messages.size(), 4u);
  EXPECT_EQ(writer_.messages.back().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(writer_.messages[2].finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
}

}  // namespace
}  // namespace berth
