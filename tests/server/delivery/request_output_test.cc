// One request's way from events to messages.
#include "tests/server/delivery/request_output_test.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/delivery/output_assembler.h"
#include "server/delivery/request_output.h"

namespace berth {
namespace {

TEST_F(RequestOutputTest, ThePromptsLogprobsComeWithTheFirstToken) {
  TokenEvent event = Event('a' - ' ', FinishReason::kNone);
  event.times = Times();
  const float none = std::numeric_limits<float>::quiet_NaN();
  event.prompt_logprobs = {.entries_per_token = 3,
                           .entries = {{1, -0.5f}, {2, -0.25f}, {1, -0.5f}, {3, -1}, {3, -1}, {3, none}}};
  ASSERT_TRUE(output().OnEvent(event, now_));
  ASSERT_EQ(writer_.messages.size(), 1u);
  const v1::GenerateResponse& message = writer_.messages[0];
  ASSERT_EQ(message.prompt_logprobs_size(), 2);
  EXPECT_EQ(message.prompt_logprobs(0).token_id(), 1);
  EXPECT_EQ(message.prompt_logprobs(0).text(), "!");
  EXPECT_EQ(message.prompt_logprobs(0).top_size(), 2);
  EXPECT_EQ(message.prompt_logprobs(1).logprob(), -1);
  EXPECT_EQ(message.prompt_logprobs(1).top_size(), 1) << "a place that no token fills";
  Written();
  SendAll("b");
  EXPECT_EQ(writer_.messages[1].prompt_logprobs_size(), 0);
}

TEST_F(RequestOutputTest, LastMessageCarriesReasonUsageAndTimings) {
  options_.prompt_token_ids = {7, 8, 9};
  SendAll("ab");
  EXPECT_FALSE(Send('c', FinishReason::kStop, 'c' - ' '));
  EXPECT_FALSE(writer_.ended) << "the first write is still in flight";
  Written();
  ASSERT_TRUE(writer_.ended);
  EXPECT_TRUE(writer_.status.ok());
  EXPECT_EQ(writer_.messages[0].prompt_token_ids_size(), 3);
  EXPECT_EQ(writer_.messages[0].finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  const v1::GenerateResponse& last = writer_.messages.back();
  EXPECT_EQ(last.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(last.stop_token_id(), 'c' - ' ');
  EXPECT_EQ(last.usage().prompt_tokens(), 3u);
  EXPECT_EQ(last.usage().completion_tokens(), 3u);
  EXPECT_EQ(last.prompt_token_ids_size(), 0);
  EXPECT_EQ(last.timings().queue_seconds(), 2);
  EXPECT_EQ(last.timings().prefill_seconds(), 3);
  EXPECT_EQ(last.timings().decode_seconds(), 3);
  EXPECT_EQ(first_tokens_, 1);
  EXPECT_EQ(gaps_, (std::vector<absl::Duration>{absl::Seconds(1), absl::Seconds(1)}));
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].reason, FinishReason::kStop);
  EXPECT_TRUE(cancels_.empty());
}

// An ordinary token may end a text too: as stop_token_ids, or as an end token that the tokenizer does not call special.
TEST_F(RequestOutputTest, TheTextOfTheEndTokenComesOnlyIfAsked) {
  for (const bool include : {false, true}) {
    options_.output.text.include_stop = include;
    Forget();
    writer_ = {};
    SendAll("ab");
    EXPECT_FALSE(Send('c', FinishReason::kStop, 'c' - ' '));
    Written();
    EXPECT_EQ(writer_.Text(), include ? "abc" : "ab");
    EXPECT_EQ(writer_.Tokens().size(), 3u);
  }
}

TEST_F(RequestOutputTest, StopStringAcrossTokensEndsAtOnceAndDropsTheRest) {
  options_.output.text.stop = {"zz", "cde"};
  SendAll("abcd");
  EXPECT_FALSE(Send('e'));
  EXPECT_EQ(cancels_, std::vector<FinishReason>{FinishReason::kStop});
  EXPECT_FALSE(Send('f'));
  EXPECT_FALSE(SendEnd(FinishReason::kStop));
  Written();
  ASSERT_TRUE(writer_.ended);
  EXPECT_TRUE(writer_.status.ok());
  EXPECT_EQ(writer_.Text(), "ab");
  EXPECT_EQ(writer_.Tokens().size(), 5u);
  EXPECT_EQ(writer_.messages.back().usage().completion_tokens(), 5u);
  EXPECT_EQ(writer_.messages.back().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(writer_.messages.back().stop_string(), "cde");
  EXPECT_EQ(ended_.size(), 1u);
}

TEST_F(RequestOutputTest, TheEndByAStopStringHasThePreemptionsAndPausesBeforeIt) {
  options_.output.text.stop = {"bc"};
  SendAll("ab");
  TokenEvent event = Event('c' - ' ', FinishReason::kNone);
  event.times = Times();
  event.times.num_preemptions = 2;
  event.times.paused = absl::Seconds(5);
  EXPECT_FALSE(output().OnEvent(event, now_ += absl::Seconds(1)));
  Written();
  EXPECT_EQ(writer_.messages.back().timings().preemptions(), 2);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].times.paused, absl::Seconds(5));
}

TEST_F(RequestOutputTest, StopStringInTheLastTokenWinsOverLength) {
  options_.output.text.stop = {"b"};
  options_.output.text.include_stop = true;
  SendAll("a");
  EXPECT_FALSE(Send('b', FinishReason::kLength));
  Written();
  EXPECT_EQ(writer_.Text(), "ab");
  EXPECT_EQ(writer_.messages.back().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(cancels_.empty()) << "the engine has ended it already";
}

TEST_F(RequestOutputTest, TextHeldBackForAStopStringComesAtTheEnd) {
  options_.output.text.stop = {"bcx"};
  SendAll("abc");
  EXPECT_FALSE(SendEnd(FinishReason::kLength));
  Written();
  EXPECT_EQ(writer_.Text(), "abc");
  EXPECT_EQ(writer_.messages.back().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(RequestOutputTest, LogprobsGoWithTheirTokens) {
  options_.output.logprobs = true;
  TokenEvent event = Event(0, FinishReason::kNone);
  event.top = {{1, -0.25f}, {97, -3.0f}};
  event.logprob = -1;
  output().OnEvent(event, now_);
  const v1::TokenLogprobs& logprobs = writer_.messages[0].logprobs(0);
  EXPECT_EQ(logprobs.text(), " ");
  EXPECT_EQ(logprobs.logprob(), -1);
  EXPECT_EQ(logprobs.top(0).text(), "!");
  EXPECT_EQ(logprobs.top(1).text(), "<97>");
}

TEST_F(RequestOutputTest, AbortKeepsWhatThereIsWithStatusOk) {
  SendAll("ab");
  output().Cancel(EndCause::kAborted);
  output().Cancel(EndCause::kClientGone);
  EXPECT_EQ(cancels_, std::vector<FinishReason>{FinishReason::kCancelled});
  SendEnd(FinishReason::kCancelled);
  Written();
  EXPECT_TRUE(writer_.status.ok());
  EXPECT_EQ(writer_.Text(), "ab");
  EXPECT_EQ(writer_.messages.back().finish_reason(), v1::FINISH_REASON_CANCELLED);
}

TEST_F(RequestOutputTest, AbortBeforeTheFirstTokenStillNamesTheRequest) {
  output().Cancel(EndCause::kAborted);
  SendEnd(FinishReason::kCancelled);
  ASSERT_TRUE(writer_.ended);
  EXPECT_EQ(writer_.messages.back().request_id(), "id");
  EXPECT_EQ(writer_.messages.back().usage().prompt_tokens(), 3u);
}

TEST_F(RequestOutputTest, CancelBeforeTheEngineKnowsTheRequestIsRepeated) {
  output().OnSubmitted();
  EXPECT_TRUE(cancels_.empty());
  output().Cancel(EndCause::kDeadline);
  output().OnSubmitted();
  EXPECT_EQ(cancels_, (std::vector<FinishReason>{FinishReason::kDeadline, FinishReason::kDeadline}));
}

TEST_F(RequestOutputTest, EndsThatLeaveNoAnswer) {
  const struct {
    EndCause cause;
    FinishReason finish;
    absl::Status error;
    absl::StatusCode code;
  } cases[] = {
      {EndCause::kClientGone, FinishReason::kCancelled, {}, absl::StatusCode::kCancelled},
      {EndCause::kShutdown, FinishReason::kCancelled, {}, absl::StatusCode::kUnavailable},
      {EndCause::kNone, FinishReason::kCancelled, {}, absl::StatusCode::kUnavailable},  // the engine is going away
      {EndCause::kDeadline, FinishReason::kDeadline, {}, absl::StatusCode::kDeadlineExceeded},
      {EndCause::kNone, FinishReason::kDeadline, {}, absl::StatusCode::kDeadlineExceeded},
      {EndCause::kNone, FinishReason::kError, absl::InternalError("device"), absl::StatusCode::kInternal},
      {EndCause::kNone, FinishReason::kError, absl::ResourceExhaustedError("memory"),
       absl::StatusCode::kResourceExhausted},
      {EndCause::kNone, FinishReason::kError, {}, absl::StatusCode::kInternal},
  };
  for (const auto& c : cases) {
    FakeWriter writer;
    RequestOutput::Options options = options_;
    RequestOutput output(options, &codec_, &writer);
    if (c.cause != EndCause::kNone) output.Cancel(c.cause);
    TokenEvent event = Event(RowResult::kNoToken, c.finish);
    event.error = c.error;
    EXPECT_FALSE(output.OnEvent(event, now_));
    EXPECT_EQ(writer.status.code(), c.code);
    EXPECT_TRUE(writer.messages.empty());
  }
}

TEST_F(RequestOutputTest, ErrorComesAfterTheTokensBeforeIt) {
  SendAll("abc");
  SendEnd(FinishReason::kError, absl::InternalError("device"));
  Written();
  EXPECT_EQ(writer_.Text(), "abc");
  EXPECT_EQ(writer_.messages.back().finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  EXPECT_EQ(writer_.status, absl::InternalError("device"));
}

TEST_F(RequestOutputTest, WithoutStreamingAllComesInOneMessage) {
  options_.stream = false;
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(Send('x'));
  EXPECT_TRUE(writer_.messages.empty());
  SendEnd(FinishReason::kLength);
  ASSERT_TRUE(writer_.ended);
  ASSERT_EQ(writer_.messages.size(), 1u);
  EXPECT_EQ(writer_.messages[0].token_ids_size(), 3000);
  EXPECT_EQ(writer_.messages[0].request_id(), "id");
}

}  // namespace
}  // namespace berth
