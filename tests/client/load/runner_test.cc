// The runner against a fake server: loops, failures, faults, cancellation.
#include "client/load/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "tests/client/fake_server.h"
#include "tests/testing/wait_until.h"

namespace berth::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kOutputTokens = 6;

Workload MakeWorkload(int64_t num_distinct = 0) {
  auto workload = Workload::Create({.prompt_tokens = *LengthDistribution::Parse("uniform:1:20"),
                                    .output_tokens = LengthDistribution::Fixed(kOutputTokens),
                                    .num_distinct = num_distinct},
                                   FakeServer::ModelInfo());
  EXPECT_TRUE(workload.ok());
  return *workload;
}

// The records in the order the requests were sent.
std::vector<RequestRecord> RunAll(const FakeServer& server, Runner::Options options, int64_t num_distinct = 0) {
  const Workload workload = MakeWorkload(num_distinct);
  Runner runner(std::move(options), &workload, server.stub());
  std::vector<RequestRecord> records = runner.Run().records;
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return records;
}

TEST(Runner, AClosedLoopKeepsItsConcurrency) {
  const FakeServer server({.wait_for_in_flight = 4});
  const auto records = RunAll(server, {.concurrency = 4, .num_requests = 40, .verify = true});
  EXPECT_THAT(records, SizeIs(40));
  EXPECT_EQ(server.peak_in_flight(), 4);
  for (const RequestRecord& record : records) {
    EXPECT_TRUE(record.ok());
    EXPECT_THAT(record.faults, IsEmpty());
    EXPECT_EQ(record.output_tokens, kOutputTokens);
    EXPECT_THAT(record.gap_seconds, SizeIs(kOutputTokens - 1));
    EXPECT_EQ(record.send_lag(), absl::ZeroDuration());
    EXPECT_LE(record.sent, record.first_token);
    EXPECT_LE(record.last_token, record.end);
  }
}

TEST(Runner, AnotherFirstConversationHasOtherPrompts) {
  const FakeServer server({.wait_for_in_flight = 1});
  RunAll(server, {.num_requests = 4});
  RunAll(server, {.num_requests = 4, .first_conversation = 4});
  std::set<std::string> requests;
  for (const v1::GenerateRequest& request : server.requests()) requests.insert(request.SerializeAsString());
  EXPECT_THAT(requests, SizeIs(8));
}

// Every call blocks until all are under way, so a loop that sends one after the other's answer would hang.
TEST(Runner, AnOpenLoopDoesNotWaitForAnswers) {
  const FakeServer server({.wait_for_in_flight = 30});
  const auto records = RunAll(server, {.rate = 2000, .num_requests = 30, .seed = 3});
  ASSERT_THAT(records, SizeIs(30));
  PoissonArrivals arrivals(2000, 3);
  for (const RequestRecord& record : records) {
    EXPECT_TRUE(record.ok());
    EXPECT_EQ(record.intended, arrivals.Next());
    EXPECT_GE(record.sent, record.intended);
  }
}

TEST(Runner, HundredsOfStreamsAtATime) {
  const FakeServer server({.wait_for_in_flight = 200});
  const auto records = RunAll(server, {.concurrency = 200, .num_requests = 200, .verify = true});
  EXPECT_EQ(std::count_if(records.begin(), records.end(), [](const auto& r) { return r.ok() && r.faults.empty(); }),
            200);
}

TEST(Runner, NothingStartsAfterTheDuration) {
  const FakeServer server;
  const auto records = RunAll(server, {.rate = 1000, .duration = absl::Milliseconds(50)});
  for (const RequestRecord& record : records) EXPECT_LT(record.intended, absl::Milliseconds(50));
  PoissonArrivals arrivals(1000, 0);
  int64_t expected = 0;
  while (arrivals.Next() < absl::Milliseconds(50)) ++expected;
  EXPECT_THAT(records, SizeIs(expected));
}

TEST(Runner, FailuresAreRecordedWithTheirCode) {
  const FakeServer server({.refuse = [](int number) {
    return number == 2 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full") : grpc::Status::OK;
  }});
  const auto records = RunAll(server, {.num_requests = 5, .verify = true});
  ASSERT_THAT(records, SizeIs(5));
  EXPECT_EQ(records[2].code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(records[2].error, "full");
  EXPECT_THAT(records[2].faults, IsEmpty());
  EXPECT_FALSE(records[2].cancelled);
  EXPECT_TRUE(records[3].ok());
}

TEST(Runner, ADeadlineEndsARequest) {
  const FakeServer server({.hang = true});
  TryLonger(
      [&server](absl::Duration time) {
        const auto records = RunAll(server, {.num_requests = 1, .timeout = time});
        EXPECT_THAT(records, SizeIs(1));
        EXPECT_EQ(records.at(0).code, grpc::StatusCode::DEADLINE_EXCEEDED);
        return records.at(0).output_tokens > 0;
      },
      "the first message before the deadline");
}

// Two conversations at a time; each turn begins with the prompt and the answer of the one before.
TEST(Runner, SendsTheTurnsOfConversations) {
  const FakeServer server({.wait_for_in_flight = 2});
  const auto workload = Workload::Create({.prompt_tokens = LengthDistribution::Fixed(5),
                                          .output_tokens = LengthDistribution::Fixed(kOutputTokens),
                                          .num_turns = 3,
                                          .turn_tokens = LengthDistribution::Fixed(2)},
                                         FakeServer::ModelInfo());
  ASSERT_TRUE(workload.ok());
  Runner runner({.concurrency = 2, .num_requests = 12}, &*workload, server.stub());
  const Runner::Result result = runner.Run();
  ASSERT_THAT(result.records, SizeIs(12));
  EXPECT_EQ(server.peak_in_flight(), 2);
  std::multiset<int> lengths;
  for (const v1::GenerateRequest& request : server.requests()) lengths.insert(request.token_ids().ids_size());
  const size_t first = lengths.count(5), second = lengths.count(13), third = lengths.count(21);
  EXPECT_EQ(first + second + third, 12u);
  // One of the two conversations under way may be ahead of the other when the last request is sent.
  EXPECT_GE(first, second);
  EXPECT_GE(second, third);
  EXPECT_LE(first, third + 2);
}

TEST(Runner, ReplaysATraceByItsArrivals) {
  const FakeServer server;
  const auto workload = Workload::Create(
      {.trace =
           {{.arrival = absl::ZeroDuration(), .prompt_tokens = 3, .output_tokens = kOutputTokens, .shared = {}},
            {.arrival = absl::Milliseconds(20), .prompt_tokens = 4, .output_tokens = kOutputTokens, .shared = {}}}},
      FakeServer::ModelInfo());
  ASSERT_TRUE(workload.ok());
  Runner runner({.arrivals = workload->Arrivals()}, &*workload, server.stub());
  const Runner::Result result = runner.Run();
  ASSERT_THAT(result.records, SizeIs(2));
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.intended, record.index == 0 ? absl::ZeroDuration() : absl::Milliseconds(20));
    EXPECT_GE(record.sent, record.intended);
  }
}

// Four requests alone, then the same under load; `edit` changes one stream of the load.
std::vector<RequestRecord> RunVerified(FakeServer::Edit edit) {
  const FakeServer server({.edit = std::move(edit)});
  Runner::Options options = {.concurrency = 8, .num_requests = 16, .verify = true};
  for (RequestRecord& alone : RunAll(server, {.num_requests = 4, .verify = true}, 4)) {
    EXPECT_TRUE(alone.ok());
    options.references.push_back(std::move(alone.token_ids));
  }
  return RunAll(server, std::move(options), 4);
}

int64_t CountFaulty(const std::vector<RequestRecord>& records) {
  return std::count_if(records.begin(), records.end(), [](const auto& record) { return !record.faults.empty(); });
}

TEST(RunnerVerify, TheSameTokensAloneAndUnderLoadAreNoFault) { EXPECT_EQ(CountFaulty(RunVerified(nullptr)), 0); }

TEST(RunnerVerify, FindsADroppedMessage) {
  const auto records = RunVerified([](int number, std::vector<v1::GenerateResponse>* messages) {
    if (number == 10) messages->erase(messages->begin() + 3);
  });
  EXPECT_EQ(CountFaulty(records), 1);
}

TEST(RunnerVerify, FindsARepeatedMessage) {
  const auto records = RunVerified([](int number, std::vector<v1::GenerateResponse>* messages) {
    if (number == 10) messages->insert(messages->begin() + 3, (*messages)[3]);
  });
  EXPECT_EQ(CountFaulty(records), 1);
}

// The counts are right, the tokens are another sequence's.
TEST(RunnerVerify, FindsARepeatedTokenThatIsCountedRight) {
  const auto records = RunVerified([](int number, std::vector<v1::GenerateResponse>* messages) {
    if (number == 10) (*messages)[3].set_token_ids(0, (*messages)[2].token_ids(0));
  });
  ASSERT_EQ(CountFaulty(records), 1);
  for (const RequestRecord& record : records) {
    if (!record.faults.empty()) {
      EXPECT_THAT(record.faults, Contains(HasSubstr("output token 3 is ")));
    }
  }
}

TEST(RunnerVerify, FindsAStreamThatEndsEarly) {
  const auto records = RunVerified([](int number, std::vector<v1::GenerateResponse>* messages) {
    if (number == 10) messages->resize(2);
  });
  EXPECT_EQ(CountFaulty(records), 1);
}

TEST(Runner, CancelEndsEveryStreamAndSendsNoMore) {
  const FakeServer server({.hang = true});
  const Workload workload = MakeWorkload();
  Runner runner({.concurrency = 5}, &workload, server.stub());
  std::thread user([&] {
    server.AwaitInFlight(5);
    EXPECT_EQ(runner.GetProgress().sent, 5);
    runner.Cancel();
  });
  const Runner::Result result = runner.Run();
  user.join();
  EXPECT_TRUE(result.cancelled);
  ASSERT_THAT(result.records, SizeIs(5));
  for (const RequestRecord& record : result.records) EXPECT_TRUE(record.cancelled);
  EXPECT_EQ(runner.GetProgress().failed, 0);
}

TEST(Runner, CancelledBeforeItRunsSendsNothing) {
  const FakeServer server;
  const Workload workload = MakeWorkload();
  Runner runner({.rate = 0.001}, &workload, server.stub());
  runner.Cancel();
  EXPECT_THAT(runner.Run().records, IsEmpty());
}

}  // namespace
}  // namespace berth::cli
