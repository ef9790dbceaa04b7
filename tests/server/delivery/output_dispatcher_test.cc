// Routing of events from the engine's thread to many requests.
#include "server/delivery/output_dispatcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/delivery/request_output.h"
#include "server/delivery/request_registry.h"
#include "tests/server/delivery/fake_text_codec.h"

namespace berth {
namespace {

// Finishes every write at once, on the delivery thread. Read after the dispatcher is gone.
class InstantWriter final : public OutputWriter {
 public:
  void Write(const v1::GenerateResponse* message) override {
    Append(*message);
    output->OnWritten(true);
  }
  void End(v1::GenerateResponse* last, const absl::Status& end_status) override {
    if (last != nullptr) Append(*last);
    status = end_status;
    ++num_ends;
  }

  std::shared_ptr<RequestOutput> output;
  std::vector<int32_t> tokens;
  absl::Status status;
  int num_ends = 0;

 private:
  void Append(const v1::GenerateResponse& message) {
    tokens.insert(tokens.end(), message.token_ids().begin(), message.token_ids().end());
  }
};

class FakeOwner final : public OutputOwner {
 public:
  void Cancel(RequestKey key, FinishReason) override { cancelled.push_back(key); }
  void CancelOutput(RequestKey, int32_t, FinishReason) override {}
  void SetPaused(RequestKey, bool) override {}
  void OnFirstToken(const RequestTimes&) override {}
  void OnInterToken(absl::Duration) override {}
  void OnEnded(const EndedRequest&) override {}

  std::vector<RequestKey> cancelled;
};

std::shared_ptr<RequestOutput> MakeOutput(RequestKey key, const TextCodec* codec, OutputWriter* writer,
                                          std::vector<std::string> stop = {}) {
  RequestOutput::Options options;
  options.key = key;
  options.request_id = absl::StrCat("id", key);
  options.output.text.stop = std::move(stop);
  options.owner = std::make_shared<FakeOwner>();
  options.undelivered = std::make_shared<Undelivered>(1 << 30);
  return std::make_shared<RequestOutput>(std::move(options), codec, writer);
}

TokenEvent Token(RequestKey key, int32_t token, FinishReason finish = FinishReason::kNone) {
  TokenEvent event;
  event.key = key;
  event.token = token;
  event.finish = finish;
  return event;
}

TEST(OutputDispatcherTest, EveryRequestGetsItsOwnTokensInOrder) {
  constexpr int kRequests = 50;
  constexpr int kSteps = 200;
  FakeTextCodec codec;
  std::vector<InstantWriter> writers(kRequests);
  {
    OutputDispatcher dispatcher({});
    for (int i = 0; i < kRequests; ++i) {
      writers[i].output = MakeOutput(i + 1, &codec, &writers[i]);
      dispatcher.Register(writers[i].output);
    }
    std::vector<TokenEvent> events;
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kRequests; ++i) {
        events.push_back(
            Token(i + 1, (step + i) % 95, step + 1 == kSteps ? FinishReason::kLength : FinishReason::kNone));
      }
      dispatcher.Deliver(&events);
      ASSERT_TRUE(events.empty());
    }
  }
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(writers[i].tokens.size(), static_cast<size_t>(kSteps));
    for (int step = 0; step < kSteps; ++step) ASSERT_EQ(writers[i].tokens[step], (step + i) % 95);
    EXPECT_EQ(writers[i].num_ends, 1);
  }
}

TEST(OutputDispatcherTest, DropsEventsOfKeysThatHaveEndedOrWereNeverKnown) {
  FakeTextCodec codec;
  InstantWriter writer;
  InstantWriter refused;
  {
    OutputDispatcher dispatcher({});
    writer.output = MakeOutput(1, &codec, &writer, {"!"});
    dispatcher.Register(writer.output);
    refused.output = MakeOutput(2, &codec, &refused);
    dispatcher.Register(refused.output);
    dispatcher.Unregister(2);
    std::vector<TokenEvent> events = {Token(1, 5), Token(2, 5), Token(3, 5)};
    dispatcher.Deliver(&events);
    events = {Token(1, 1), Token(1, 6), Token(1, 7, FinishReason::kStop)};
    dispatcher.Deliver(&events);
    events = {Token(1, 8)};
    dispatcher.Deliver(&events);
  }
  EXPECT_EQ(writer.tokens, (std::vector<int32_t>{5, 1}));
  EXPECT_EQ(writer.num_ends, 1);
  EXPECT_EQ(refused.num_ends, 0);
  EXPECT_EQ(writer.output.use_count(), 1) << "the dispatcher has let go of it";
}

TEST(RequestRegistryTest, RefusesAnIdThatIsUnderWay) {
  FakeTextCodec codec;
  InstantWriter writer;
  RequestRegistry registry;
  ASSERT_TRUE(registry.Add(MakeOutput(1, &codec, &writer)).ok());
  EXPECT_EQ(registry.Add(MakeOutput(1, &codec, &writer)),
            absl::AlreadyExistsError("request_id: \"id1\" is already running"));
  registry.Remove("", "id1");
  EXPECT_TRUE(registry.Add(MakeOutput(1, &codec, &writer)).ok());
  EXPECT_EQ(registry.size(), 1);
}

TEST(RequestRegistryTest, CancelsByIdAndAll) {
  FakeTextCodec codec;
  InstantWriter writer;
  RequestRegistry registry;
  const auto owner = std::make_shared<FakeOwner>();
  std::vector<RequestKey>& cancelled = owner->cancelled;
  for (RequestKey key = 1; key <= 3; ++key) {
    RequestOutput::Options options;
    options.key = key;
    options.request_id = absl::StrCat("id", key);
    options.owner = owner;
    options.undelivered = std::make_shared<Undelivered>(1 << 30);
    ASSERT_TRUE(registry.Add(std::make_shared<RequestOutput>(std::move(options), &codec, &writer)).ok());
  }
  EXPECT_FALSE(registry.Cancel("", "id4", EndCause::kAborted));
  EXPECT_TRUE(registry.Cancel("", "id2", EndCause::kAborted));
  EXPECT_EQ(cancelled, std::vector<RequestKey>{2});
  registry.CancelAll(EndCause::kShutdown);
  std::sort(cancelled.begin(), cancelled.end());
  EXPECT_EQ(cancelled, (std::vector<RequestKey>{1, 2, 3}));
}

}  // namespace
}  // namespace berth
