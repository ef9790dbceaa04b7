#include "server/request/turn_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/refusal.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A pool whose threads a test holds up, and the order in which it did its work.
class TurnPoolTest : public ::testing::Test {
 protected:
  void Start(TurnPool::Options options) {
    options.now = [this] { return absl::UnixEpoch() + absl::Seconds(now_.load()); };
    pool_ = std::make_unique<TurnPool>(options);
  }

  TurnPool::Job MakeJob(RequestKey key, std::string client, std::string tenant = "") {
    TurnPool::Job job;
    job.key = key;
    job.client = std::move(client);
    job.tenant = std::move(tenant);
    job.bytes = 10;
    job.work = [this, key](const absl::Status& status, const StopCheck&) { Note(key, status); };
    return job;
  }
  // Submits work that takes until `release`, and waits until a thread has begun it.
  void Hold(RequestKey key, std::string client, std::shared_future<void> release) {
    TurnPool::Job job = MakeJob(key, std::move(client));
    const auto begun = std::make_shared<std::promise<void>>();
    job.work = [begun, release](const absl::Status&, const StopCheck&) {
      begun->set_value();
      release.wait();
    };
    ASSERT_TRUE(pool_->Submit(std::move(job)).ok());
    begun->get_future().wait();
  }
  // Submits work that takes until it is stopped, and waits until a thread has begun it.
  void StartEndless(RequestKey key, absl::Time deadline) {
    TurnPool::Job job = MakeJob(key, "a");
    job.deadline = deadline;
    const auto begun = std::make_shared<std::promise<void>>();
    job.work = [begun](const absl::Status&, const StopCheck& stop) {
      begun->set_value();
      while (!stop()) std::this_thread::yield();
    };
    ASSERT_TRUE(pool_->Submit(std::move(job)).ok());
    begun->get_future().wait();
  }
  // Waits for everything that was submitted, also for what would have another thread.
  void Finish() {
    WaitUntil([this] { return pool_->load().waiting + pool_->load().running == 0; }, "the pool's work");
  }

  void Note(RequestKey key, const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    order_.push_back(key);
    codes_.push_back(status.code());
  }
  std::vector<RequestKey> Order() {
    std::lock_guard<std::mutex> lock(mutex_);
    return order_;
  }
  std::vector<absl::StatusCode> Codes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return codes_;
  }

  std::atomic<int64_t> now_{0};
  std::promise<void> release_;
  std::unique_ptr<TurnPool> pool_;

 private:
  std::mutex mutex_;
  std::vector<RequestKey> order_;
  std::vector<absl::StatusCode> codes_;
};

TEST_F(TurnPoolTest, ClientsTakeTurnsAndSoDoTheTenantsOfOne) {
  Start({.threads = 1});
  Hold(1, "x", release_.get_future().share());
  for (RequestKey key : {10, 11, 12, 13}) ASSERT_TRUE(pool_->Submit(MakeJob(key, "a", "m")).ok());
  for (RequestKey key : {20, 21}) ASSERT_TRUE(pool_->Submit(MakeJob(key, "a", "n")).ok());
  for (RequestKey key : {30, 31}) ASSERT_TRUE(pool_->Submit(MakeJob(key, "b")).ok());
  release_.set_value();
  Finish();
  EXPECT_THAT(Order(), ElementsAre(10, 30, 20, 31, 11, 21, 12, 13));
}

TEST_F(TurnPoolTest, NamesOfTenantsWinAClientNoTurns) {
  Start({.threads = 1});
  Hold(1, "x", release_.get_future().share());
  for (RequestKey key = 100; key < 150; ++key) {
    ASSERT_TRUE(pool_->Submit(MakeJob(key, "many", "name" + std::to_string(key))).ok());
  }
  ASSERT_TRUE(pool_->Submit(MakeJob(7, "one")).ok());
  release_.set_value();
  Finish();
  EXPECT_EQ(Order()[1], 7);
}

TEST_F(TurnPoolTest, OneClientLeavesAThreadToOthers) {
  Start({.threads = 2});
  Hold(1, "slow", release_.get_future().share());
  ASSERT_TRUE(pool_->Submit(MakeJob(2, "slow")).ok());
  ASSERT_TRUE(pool_->Submit(MakeJob(3, "other")).ok());
  WaitUntil([this] { return !Order().empty(); }, "the other client's work");
  EXPECT_THAT(Order(), ElementsAre(3));
  EXPECT_EQ(pool_->load().waiting, 1);
  release_.set_value();
  Finish();
  EXPECT_THAT(Order(), ElementsAre(3, 2));
}

TEST_F(TurnPoolTest, RefusesWhatDoesNotFitAtOnceAndKeepsRoomForOtherClients) {
  Start({.threads = 1, .max_waiting = 4});
  Hold(1, "x", release_.get_future().share());
  for (RequestKey key : {2, 3}) ASSERT_TRUE(pool_->Submit(MakeJob(key, "a")).ok());
  EXPECT_EQ(RefusalOf(pool_->Submit(MakeJob(4, "a"))),
            (Refusal{.reason = RefusalReason::kTexts, .limit = "2", .value = "3"}));
  for (RequestKey key : {5, 6}) ASSERT_TRUE(pool_->Submit(MakeJob(key, "b")).ok());
  EXPECT_EQ(RefusalOf(pool_->Submit(MakeJob(7, "c"))),
            (Refusal{.reason = RefusalReason::kTexts, .limit = "4", .value = "5"}));
  EXPECT_EQ(pool_->load().refused, 2);
  release_.set_value();
  Finish();
  EXPECT_THAT(Order(), ElementsAre(2, 5, 3, 6));
  EXPECT_TRUE(pool_->Submit(MakeJob(8, "a")).ok());
  Finish();
}

TEST_F(TurnPoolTest, BytesCountAndOneTextAlwaysFits) {
  Start({.threads = 1, .max_waiting_bytes = 30});
  Hold(1, "x", release_.get_future().share());
  TurnPool::Job large = MakeJob(2, "a");
  large.bytes = 1000;
  ASSERT_TRUE(pool_->Submit(std::move(large)).ok());
  EXPECT_EQ(pool_->load().waiting_bytes, 1000);
  EXPECT_EQ(RefusalOf(pool_->Submit(MakeJob(3, "b"))),
            (Refusal{.reason = RefusalReason::kTexts, .limit = "30", .value = "1010"}));
  release_.set_value();
  Finish();
  EXPECT_EQ(pool_->load().waiting_bytes, 0);
  EXPECT_TRUE(pool_->Submit(MakeJob(3, "b")).ok());
  Finish();
}

TEST_F(TurnPoolTest, CancelAnswersWhatWaitsAndStopsWhatRuns) {
  Start({.threads = 1});
  StartEndless(1, absl::InfiniteFuture());
  ASSERT_TRUE(pool_->Submit(MakeJob(2, "a")).ok());
  pool_->Cancel(2);
  EXPECT_THAT(Order(), ElementsAre(2));
  EXPECT_THAT(Codes(), ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_EQ(pool_->load().waiting, 0);
  pool_->Cancel(3);  // unknown
  pool_->Cancel(1);
  Finish();
}

TEST_F(TurnPoolTest, ADeadlineEndsWhatWaitsAndStopsWhatRuns) {
  Start({.threads = 1});
  StartEndless(1, absl::UnixEpoch() + absl::Seconds(5));
  TurnPool::Job waiting = MakeJob(2, "a");
  waiting.deadline = absl::UnixEpoch() + absl::Seconds(5);
  ASSERT_TRUE(pool_->Submit(std::move(waiting)).ok());
  now_ = 5;
  Finish();
  EXPECT_THAT(Codes(), ElementsAre(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(TurnPoolTest, StopEndsWhatWaitsAndWhatComesAfter) {
  Start({.threads = 1});
  Hold(1, "x", release_.get_future().share());
  ASSERT_TRUE(pool_->Submit(MakeJob(2, "a")).ok());
  EXPECT_THAT(Order(), IsEmpty());
  pool_->Stop();
  ASSERT_TRUE(pool_->Submit(MakeJob(3, "a")).ok());
  EXPECT_THAT(Order(), ElementsAre(2, 3));
  EXPECT_THAT(Codes(), ElementsAre(absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable));
  release_.set_value();
}

TEST_F(TurnPoolTest, AnswersEachWorkOnceUnderCancellationsFromManyThreads) {
  Start({.threads = 3, .max_waiting = 1 << 20});
  constexpr int kThreads = 4;
  constexpr int kJobs = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kJobs; ++i) {
        const RequestKey key = t * kJobs + i;
        EXPECT_TRUE(pool_->Submit(MakeJob(key, std::to_string(t), std::to_string(i % 7))).ok());
        if (i % 3 == 0) pool_->Cancel(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Finish();
  std::vector<RequestKey> order = Order();
  std::sort(order.begin(), order.end());
  ASSERT_EQ(order.size(), size_t{kThreads * kJobs});
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<RequestKey>(i));
}

}  // namespace
}  // namespace berth
