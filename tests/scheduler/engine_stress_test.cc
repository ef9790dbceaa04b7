// Four clients submit, cancel, pause and look at the load, as fast as they can, while an engine with far too small a
// cache runs; for ThreadSanitizer above all.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "scheduler/engine.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

constexpr int kNumClients = 4;

struct Client {
  // Submits, cancels and looks until it has submitted `num_requests`.
  void Run(Engine* engine, int index, int num_requests) {
    std::mt19937 random(static_cast<uint32_t>(index));
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    for (int i = 0; i < num_requests;) {
      Request request;
      request.key = static_cast<RequestKey>(index * 1000000 + i);
      request.prompt.assign(1 + below(20), static_cast<int32_t>(below(100)));
      request.max_tokens = 1 + below(20);
      request.stop_token_ids = {static_cast<int32_t>(below(100))};
      request.arrival = absl::Now();
      if (below(2) == 0) {
        request.constraint = std::make_shared<FakeConstraint>(FakeConstraint::Options{
            .seed = random(), .end_tokens = request.stop_token_ids, .dead = below(4) == 0 ? below(9) : 0});
      }
      if (below(10) == 0) request.deadline = request.arrival + absl::Microseconds(below(2000));
      const absl::Status status = engine->Submit(request);
      if (status.ok()) {
        accepted[request.key] = request;
        ++i;
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        std::this_thread::yield();
      }
      if (below(4) == 0) engine->Cancel(static_cast<RequestKey>(index * 1000000 + below(i + 2)));
      if (below(6) == 0) engine->SetPaused(static_cast<RequestKey>(index * 1000000 + below(i + 2)), true);
      if (below(3) == 0) engine->SetPaused(static_cast<RequestKey>(index * 1000000 + below(i + 2)), false);
      if (below(8) == 0) {
        const EngineLoad load = engine->GetLoad();
        EXPECT_EQ(load.occupancy.TotalBytes(), load.occupancy.arena_bytes);
        EXPECT_GE(load.counts.num_waiting, 0);
        EXPECT_TRUE(engine->healthy());
      }
    }
  }

  std::map<RequestKey, Request> accepted;
};

void ExpectAnswered(const Request& request, const RequestRecord& record) {
  EXPECT_EQ(record.num_ends, 1) << request.key;
  EXPECT_FALSE(record.token_after_end) << request.key;
  FakeModelRunner::Answer answer = FakeModelRunner::AnswerTo(request);
  if (record.finish == FinishReason::kStop || record.finish == FinishReason::kLength) {
    EXPECT_EQ(record.finish, answer.finish) << request.key;
  } else if (record.finish == FinishReason::kError) {
    EXPECT_EQ(answer.finish, FinishReason::kError) << request.key << ": " << record.error;
  } else {
    ASSERT_LE(record.tokens.size(), answer.tokens.size()) << request.key;
    answer.tokens.resize(record.tokens.size());
  }
  EXPECT_EQ(record.tokens, answer.tokens) << request.key;
}

class EngineStress : public ::testing::TestWithParam<bool> {};

TEST_P(EngineStress, EveryRequestEndsOnceWithItsTokens) {
  const bool wait_for_idle = GetParam();
  const int num_requests = std::getenv("BERTH_FULL") != nullptr ? 20000 : 500;
  TinyCache tiny({StaticLayer(), SlidingLayer(6), RecurrentLayer()}, /*arena_size=*/16);
  FakeModelRunner runner(tiny.cache.get());
  RecordingSink sink;
  Engine::Options options;
  options.scheduler = {
      .max_running = 8, .max_step_tokens = 24, .prefill_chunk_tokens = 7, .max_sequence_tokens = 40, .mask_threads = 2};
  options.max_queue = 16;
  options.unread_timeout = absl::Milliseconds(20);
  options.check_integrity = true;
  auto engine = Engine::Create(tiny.cache.get(), &runner, &sink, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->Start();

  std::vector<Client> clients(kNumClients);
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumClients; ++i) {
    threads.emplace_back([&, i] { clients[i].Run(engine->get(), i + 1, num_requests); });
  }
  for (std::thread& thread : threads) thread.join();
  if (wait_for_idle) {
    (*engine)->Drain();
    ASSERT_TRUE((*engine)->WaitUntilIdle(kHangLimit));
    const EngineLoad load = (*engine)->GetLoad();
    EXPECT_EQ(load.counts.num_running + load.counts.num_waiting + load.counts.waiting_tokens, 0);
    EXPECT_EQ(load.occupancy.num_leases, 0);
    EXPECT_EQ(load.counts.num_paused, 0);
    EXPECT_GT(load.counts.num_pauses, 0);
    EXPECT_GT(load.counts.forced_tokens, 0);
    EXPECT_GT(load.counts.num_preemptions, 0) << "the arena is too large: the test is too easy";
  }
  engine->reset();
  EXPECT_EQ(runner.mismatch(), "");
  for (const Client& client : clients) {
    for (const auto& [key, request] : client.accepted) ExpectAnswered(request, sink.Get(key));
  }
}

INSTANTIATE_TEST_SUITE_P(DrainedOrDestroyed, EngineStress, ::testing::Bool());

}  // namespace
}  // namespace berth
