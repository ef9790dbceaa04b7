// One request's way from events to messages, with a writer that finishes its writes when the test says so.
#include "server/delivery/request_output.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/delivery/output_assembler.h"
#include "tests/server/delivery/fake_text_codec.h"

namespace berth {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TokenEvent Event(int32_t token, FinishReason finish) {
  TokenEvent event;
  event.key = 5;
  event.token = token;
  event.finish = finish;
  return event;
}

class FakeWriter final : public OutputWriter {
 public:
  void Write(const v1::GenerateResponse* message) override {
    EXPECT_FALSE(writing || ended) << "a second write in flight, or one after the end";
    writing = true;
    messages.push_back(*message);
  }
  void End(v1::GenerateResponse* last, const absl::Status& end_status) override {
    EXPECT_FALSE(writing || ended);
    ended = true;
    status = end_status;
    if (last != nullptr) messages.push_back(*last);
  }
  std::string Text() const {
    std::string text;
    for (const v1::GenerateResponse& message : messages) text += message.text();
    return text;
  }
  std::vector<int32_t> Tokens() const {
    std::vector<int32_t> tokens;
    for (const v1::GenerateResponse& message : messages) {
      tokens.insert(tokens.end(), message.token_ids().begin(), message.token_ids().end());
    }
    return tokens;
  }

  bool writing = false;
  bool ended = false;
  absl::Status status;
  std::vector<v1::GenerateResponse> messages;
};

class RequestOutputTest : public ::testing::Test {
 protected:
  RequestOutputTest() {
    options_.key = 5;
    options_.request_id = "id";
    options_.arrival = kStart;
    options_.num_prompt_tokens = 3;
    options_.hooks.cancel = [this](RequestKey key, FinishReason reason) {
      EXPECT_EQ(key, 5u);
      cancels_.push_back(reason);
    };
    options_.hooks.ended = [this](const EndedRequest& ended) {
      EXPECT_FALSE(writer_.ended);
      ended_.push_back(ended);
    };
    options_.hooks.set_paused = [this](RequestKey key, bool paused) {
      EXPECT_EQ(key, 5u);
      pauses_.push_back(paused);
    };
    options_.hooks.first_token = [this](const RequestTimes&) { ++first_tokens_; };
    options_.hooks.inter_token = [this](absl::Duration gap) { gaps_.push_back(gap); };
  }

  RequestOutput& output() {
    if (output_ == nullptr) output_ = std::make_unique<RequestOutput>(options_, &codec_, &writer_);
    return *output_;
  }
  // Sends the character's token, which may end the request.
  bool Send(char c, FinishReason finish = FinishReason::kNone, int32_t stop_token = -1) {
    TokenEvent event = Event(c - ' ', finish);
    event.stop_token = stop_token;
    event.logprob = -0.5f;
    event.times = Times();
    return output().OnEvent(event, now_ += absl::Seconds(1));
  }
  bool SendEnd(FinishReason finish, absl::Status error = absl::OkStatus()) {
    TokenEvent event = Event(RowResult::kNoToken, finish);
    event.error = std::move(error);
    event.times = Times();
    return output().OnEvent(event, now_ += absl::Seconds(1));
  }
  void Forget() { output_.reset(); }
  void SendAll(const std::string& text) {
    for (const char c : text) ASSERT_TRUE(Send(c));
  }
  void Written(bool ok = true) {
    writer_.writing = false;
    output().OnWritten(ok);
  }
  RequestTimes Times() const {
    return {.arrival = kStart, .first_scheduled = kStart + absl::Seconds(2), .first_token = kStart + absl::Seconds(5)};
  }

  FakeTextCodec codec_;
  FakeWriter writer_;
  RequestOutput::Options options_;
  std::vector<FinishReason> cancels_;
  std::vector<bool> pauses_;
  std::vector<EndedRequest> ended_;
  int first_tokens_ = 0;
  std::vector<absl::Duration> gaps_;
  absl::Time now_ = kStart + absl::Seconds(5);

 private:
  std::unique_ptr<RequestOutput> output_;
};

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
  while (Send('a')) most = std::max(most, undelivered->load().bytes - 1001);
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
    options.hooks.ended = [](const EndedRequest&) {};
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
