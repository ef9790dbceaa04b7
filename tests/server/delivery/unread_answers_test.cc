#include "server/delivery/unread_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class UnreadAnswersTest : public ::testing::Test {
 protected:
  void Add(int call, int64_t bytes) {
    answers_.Add(&calls_[static_cast<size_t>(call)], bytes, [this, call] { cancelled_.push_back(call); });
  }
  void Remove(int call) { answers_.Remove(&calls_[static_cast<size_t>(call)]); }

  Undelivered undelivered_{1000};
  UnreadAnswers answers_{10, &undelivered_};
  std::array<char, 10> calls_ = {};
  std::vector<int> cancelled_;
};

TEST_F(UnreadAnswersTest, OverTheLimitTheOldestAreCancelled) {
  for (int call : {0, 1, 2}) Add(call, 3);
  EXPECT_THAT(cancelled_, IsEmpty());
  Remove(1);
  Add(3, 4);
  EXPECT_THAT(cancelled_, IsEmpty());
  Add(4, 7);
  EXPECT_THAT(cancelled_, ElementsAre(0, 2, 3));
  EXPECT_EQ(undelivered_.load().bytes, 17) << "what is cancelled counts until gRPC is done with it";
  EXPECT_EQ(undelivered_.load().ended, 3);
  for (int call : {0, 2, 3, 4}) Remove(call);
  EXPECT_EQ(undelivered_.load().bytes, 0);
  Add(5, 10);
  EXPECT_EQ(cancelled_.size(), 3U);
}

TEST_F(UnreadAnswersTest, TheNewestFitsWhateverItsSize) {
  Add(0, 100);
  EXPECT_THAT(cancelled_, IsEmpty());
  Add(1, 200);
  EXPECT_THAT(cancelled_, ElementsAre(0));
}

TEST_F(UnreadAnswersTest, ACallWithoutAnAnswerMayBeRemoved) {
  Remove(0);
  EXPECT_EQ(undelivered_.load().bytes, 0);
}

TEST_F(UnreadAnswersTest, CancellingMayEndCallsAndAddAnswers) {
  answers_.Add(&calls_[0], 8, [this] {
    Remove(0);
    Remove(1);
    Add(2, 9);
  });
  Add(1, 1);
  Add(3, 5);
  EXPECT_THAT(cancelled_, ElementsAre(3)) << "2 came after it, and both are too much";
  EXPECT_EQ(undelivered_.load().bytes, 14);
}

TEST_F(UnreadAnswersTest, ACallLivesWhileItIsCancelled) {
  absl::Notification begun, go_on;
  std::atomic<bool> is_cancelled = false;
  answers_.Add(&calls_[0], 8, [&] {
    begun.Notify();
    go_on.WaitForNotification();
    is_cancelled = true;
  });
  std::thread adds([&] { Add(1, 8); });
  begun.WaitForNotification();
  std::thread removes([&] {
    Remove(0);
    EXPECT_TRUE(is_cancelled);
  });
  Remove(2);  // others do not wait
  go_on.Notify();
  adds.join();
  removes.join();
  EXPECT_EQ(undelivered_.load().bytes, 8);
}

TEST_F(UnreadAnswersTest, ManyThreadsLeaveNothing) {
  std::atomic<int> live = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        std::array<std::atomic<bool>, 2> own = {true, true};  // whether the call lives
        for (std::atomic<bool>& call : own) {
          answers_.Add(&call, 1 + round % 8, [&call, &live] { live += call ? 0 : 1; });
        }
        for (std::atomic<bool>& call : own) {
          answers_.Remove(&call);
          call = false;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live, 0) << "calls were cancelled after they had ended";
  EXPECT_EQ(undelivered_.load().bytes, 0);
  EXPECT_GT(undelivered_.load().ended, 0);
}

}  // namespace
}  // namespace berth
