// Prompts and texts that take long: what else the server does meanwhile, and how they end.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/request/message.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

v1::GenerateRequest Prompt(const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_prompt(prompt);
  request.mutable_stopping()->set_max_tokens(3);
  return request;
}

// A server whose tokenizer takes until Release() for texts that begin with "slow".
class TextsTest : public ::testing::Test {
 protected:
  TextsTest() {
    server_.codec.on_encode = [this](std::string_view text, const StopCheck& stop) {
      while (text == "until it is stopped" && !stop()) {
        encoding_ = 1;
        std::this_thread::yield();
      }
      if (text.substr(0, 4) != "slow") return;
      ++encoding_;
      released_future_.wait();
    };
  }
  ~TextsTest() override { Release(); }
  void Release() {
    if (!released_.exchange(true)) release_.set_value();
  }
  // Waits until this number of texts waits for a thread.
  void WaitForWaiting(int64_t n) {
    WaitUntil([this, n] { return server_.texts.load().waiting == n; }, "the number of texts that wait");
  }
  void WaitForEncoding() {
    WaitUntil([this] { return encoding_ == 1; }, "a text to be tokenised");
  }
  // One text that a thread works on.
  std::unique_ptr<Call> StartSlow() {
    auto call = std::make_unique<Call>(&server_, Prompt("slow"), absl::Now() + kHangLimit);
    WaitForEncoding();
    return call;
  }
  absl::StatusCode Tokenize(const std::string& text, absl::Time deadline = absl::Now() + kHangLimit) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    const grpc::Status status = server_.inference_stub->Tokenize(&context, request, &response);
    return static_cast<absl::StatusCode>(status.error_code());
  }

  std::atomic<int> encoding_{0};
  std::atomic<bool> released_{false};
  std::promise<void> release_;
  std::shared_future<void> released_future_ = release_.get_future().share();
  TestServer server_;
};

TEST_F(TextsTest, ALongTextHoldsUpNoOtherKindOfCall) {
  std::unique_ptr<Call> slow = StartSlow();
  std::vector<std::unique_ptr<Call>> waiting;
  for (int i = 0; i < 7; ++i)
    waiting.push_back(std::make_unique<Call>(&server_, Prompt("slow"), absl::Now() + kHangLimit));
  WaitForWaiting(7);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(server_.Load().running(), 0);
  v1::GenerateRequest tokens;
  tokens.mutable_token_ids()->add_ids(5);
  tokens.mutable_stopping()->set_max_tokens(3);
  Call call(&server_, tokens, absl::Now() + kHangLimit);
  EXPECT_TRUE(call.ReadAll().status.ok());
  EXPECT_EQ(encoding_, 1);  // the client's other texts wait
}

TEST_F(TextsTest, TextsOverTheLimitAreRefusedAtOnce) {
  std::unique_ptr<Call> slow = StartSlow();
  std::vector<std::unique_ptr<Call>> waiting;
  for (int i = 0; i < 8; ++i)
    waiting.push_back(std::make_unique<Call>(&server_, Prompt("slow"), absl::Now() + kHangLimit));
  WaitForWaiting(8);
  EXPECT_EQ(Tokenize("a"), absl::StatusCode::kResourceExhausted);
  Call call(&server_, Prompt("a"), absl::Now() + kHangLimit);
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(call.context.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
  Release();
  for (const std::unique_ptr<Call>& one : waiting) EXPECT_TRUE(one->ReadAll().status.ok());
}

TEST_F(TextsTest, ADeadlineEndsATextThatWaits) {
  std::unique_ptr<Call> slow = StartSlow();
  // No step runs, so there is nothing to predict a wait from, and no request is refused for its deadline.
  const auto waits = [this] { return server_.texts.load().waiting == 1; };
  TryLonger(
      [&](absl::Duration time) {
        const absl::Time deadline = absl::Now() + time;
        std::future<absl::StatusCode> code = std::async(std::launch::async, [&] { return Tokenize("a", deadline); });
        const bool waited = HoldsBefore(deadline, waits);
        EXPECT_EQ(code.get(), absl::StatusCode::kDeadlineExceeded);
        WaitForWaiting(0);
        return waited;
      },
      "the text to wait before its deadline");
  TryLonger(
      [&](absl::Duration time) {
        const absl::Time deadline = absl::Now() + time;
        Call call(&server_, Prompt("a"), deadline);
        const bool waited = HoldsBefore(deadline, waits);
        EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
        WaitForWaiting(0);
        return waited;
      },
      "the prompt to wait before its deadline");
}

TEST_F(TextsTest, ACancelledTextIsNotTokenised) {
  std::unique_ptr<Call> slow = StartSlow();
  Call call(&server_, Prompt("slow"), absl::Now() + kHangLimit);
  WaitForWaiting(1);
  call.context.TryCancel();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  WaitForWaiting(0);
  Release();
  EXPECT_TRUE(slow->ReadAll().status.ok());
  EXPECT_EQ(encoding_, 1);
}

TEST_F(TextsTest, ATextThatIsCancelledWhileItIsTokenisedStartsNoRequest) {
  Call call(&server_, Prompt("until it is stopped"), absl::Now() + kHangLimit);
  WaitForEncoding();
  call.context.TryCancel();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  WaitUntil([this] { return server_.texts.load().running == 0; }, "the text to be stopped");
  EXPECT_EQ(server_.registry.size(), 0);
  EXPECT_EQ(server_.Load().prompt_tokens(), 0);
}

TEST_F(TextsTest, TheEndOfTheServerAnswersTextsThatWait) {
  std::unique_ptr<Call> slow = StartSlow();
  Call call(&server_, Prompt("a"), absl::Now() + kHangLimit);
  WaitForWaiting(1);
  server_.intake->EndAll();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Tokenize("a"), absl::StatusCode::kUnavailable);
  Release();
  EXPECT_EQ(slow->ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TextsTest, TheEndOfTheServerEndsATextThatIsTokenised) {
  std::future<absl::StatusCode> code = std::async(std::launch::async, [&] { return Tokenize("until it is stopped"); });
  WaitForEncoding();
  server_.intake->EndAll();
  EXPECT_EQ(code.get(), absl::StatusCode::kUnavailable) << "its client has cancelled nothing";
}

// Tells that a call has ended.
class EndOfCall final : public OutputWriter {
 public:
  void Write(const v1::GenerateResponse*) override {}
  void End(v1::GenerateResponse*, const absl::Status& status) override {
    status_ = status;
    ended_.Notify();
  }
  absl::Status Wait() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(kHangLimit)) << "the call did not end";
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification ended_;
};

TEST_F(TextsTest, AMessageIsEmptiedOnceItIsChecked) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  request.mutable_stopping()->set_max_tokens(3);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1234)->assign(1 << 20, 'x');
  EndOfCall end;
  const auto handle = server_.intake->Start(&request, {}, /*stream=*/false, &end);
  EXPECT_EQ(request.SpaceUsedLong(), v1::GenerateRequest().SpaceUsedLong());
  EXPECT_TRUE(end.Wait().ok());
}

// A message of two bytes takes about 70 in memory.
TEST(TextBytes, CountsWhatManySmallPartsTake) {
  v1::GenerateRequest request;
  for (int i = 0; i < 10'000; ++i) request.mutable_chat()->add_messages();
  EXPECT_LT(request.ByteSizeLong(), 30'000U);
  EXPECT_GT(TextBytes(&request).value_or(0), 400'000);
}

}  // namespace
}  // namespace berth
