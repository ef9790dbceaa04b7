// A request's output, with a writer that finishes its writes when the test says so.
#ifndef BERTH_TESTS_SERVER_DELIVERY_REQUEST_OUTPUT_TEST_H_
#define BERTH_TESTS_SERVER_DELIVERY_REQUEST_OUTPUT_TEST_H_

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/delivery/request_output.h"
#include "tests/server/delivery/fake_text_codec.h"

namespace berth {

inline const absl::Time kStart = absl::FromUnixSeconds(1000);

inline TokenEvent Event(int32_t token, FinishReason finish) {
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
  void SetUnread(int64_t bytes) override {
    EXPECT_FALSE(ended);
    EXPECT_EQ(unread, 0) << "at most once";
    unread = bytes;
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
  int64_t unread = 0;
  absl::Status status;
  std::vector<v1::GenerateResponse> messages;
};

class RequestOutputTest : public ::testing::Test, public OutputOwner {
 protected:
  RequestOutputTest() {
    options_.key = 5;
    options_.request_id = "id";
    options_.arrival = kStart;
    options_.num_prompt_tokens = 3;
    options_.owner = std::shared_ptr<OutputOwner>(this, [](OutputOwner*) {});
    options_.undelivered = std::make_shared<Undelivered>(std::numeric_limits<int64_t>::max());
  }

  void Cancel(RequestKey key, FinishReason reason) override {
    EXPECT_EQ(key, 5u);
    cancels_.push_back(reason);
  }
  void CancelOutput(RequestKey, int32_t, FinishReason) override {}
  void SetPaused(RequestKey key, bool paused) override {
    EXPECT_EQ(key, 5u);
    pauses_.push_back(paused);
  }
  void OnFirstToken(const RequestTimes&) override { ++first_tokens_; }
  void OnInterToken(absl::Duration gap) override { gaps_.push_back(gap); }
  void OnEnded(const EndedRequest& ended) override {
    EXPECT_FALSE(writer_.ended);
    ended_.push_back(ended);
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

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_DELIVERY_REQUEST_OUTPUT_TEST_H_
