#include "models/step/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace berth {
namespace {

TEST(ThreadPoolTest, EveryItemOnce) {
  for (int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(NumThreads(&pool), num_threads);
    for (int64_t items : {0, 1, 2, 7, 1000}) {
      for (int64_t grain : {int64_t{1}, int64_t{3}, std::max<int64_t>(items, 1)}) {
        std::vector<int> counts(items);  // plain ints: the pool orders what it runs with what follows
        ShareItems(&pool, items, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_GE(thread, 0);
          EXPECT_LT(thread, num_threads);
          EXPECT_LE(end - begin, num_threads == 1 ? items : grain);
          for (int64_t i = begin; i < end; ++i) ++counts[i];
        });
        EXPECT_EQ(counts, std::vector<int>(items, 1));
      }
    }
  }
}

TEST(ThreadPoolTest, NoThreadTwiceAtOnce) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::vector<int64_t> owned(kThreads);  // no lock: an index is one thread's
  for (int call = 0; call < 20000; ++call) {
    std::atomic<int> began = 0;
    pool.Run([&](int thread) {
      ++owned[thread];
      ++began;
    });
    ASSERT_GE(began, 1);
    ASSERT_LE(began, kThreads);
  }
  EXPECT_EQ(owned[0], 20000);
  for (int64_t count : owned) EXPECT_LE(count, 20000);
}

// What is read ahead is a hint: it may be anywhere, and of any size.
TEST(ThreadPoolTest, ReadsAheadWhatNeedNotBeThere) {
  ThreadPool pool(3);
  const std::vector<char> there(4 * ThreadPool::kReadAheadBytes);
  const auto* nowhere = reinterpret_cast<const char*>(uintptr_t{1} << 46);
  for (const char* begin : {there.data(), nowhere, static_cast<const char*>(nullptr)}) {
    for (int64_t size_bytes : {int64_t{0}, int64_t{1}, static_cast<int64_t>(there.size())}) {
      pool.ReadAhead(begin, size_bytes);
      for (const auto pause : {std::chrono::microseconds(0), 2 * ThreadPool::kLookOut}) {
        std::atomic<int64_t> sum = 0;
        ShareItems(&pool, 100, 1, [&](int64_t first, int64_t, int) { sum += first; });
        EXPECT_EQ(sum, 4950);
        std::this_thread::sleep_for(pause);
      }
    }
  }
}

// Each waits for the other, so one alone would never end.
TEST(ThreadPoolTest, WorkersComeWhetherTheyLookOutOrSleep) {
  ThreadPool pool(2);
  for (const auto pause : {std::chrono::microseconds(0), 3 * ThreadPool::kLookOut}) {
    for (int call = 0; call < 50; ++call) {
      std::atomic<int> arrived = 0;
      pool.Run([&](int) {
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
      });
      EXPECT_EQ(arrived, 2);
      const auto start = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - start < pause) std::this_thread::yield();
    }
  }
}

TEST(ThreadPoolTest, RethrowsAndGoesOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(pool.Run([](int) { throw std::runtime_error("no"); }), std::runtime_error);
    std::atomic<int> began = 0;
    pool.Run([&](int) { ++began; });
    EXPECT_GE(began, 1);
  }
}

TEST(ThreadPoolTest, WithoutAPoolTheCallerDoesAll) {
  EXPECT_EQ(NumThreads(nullptr), 1);
  std::set<std::thread::id> ids;
  ShareItems(nullptr, 100, 1, [&](int64_t begin, int64_t end, int thread) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
    EXPECT_EQ(thread, 0);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids, std::set<std::thread::id>{std::this_thread::get_id()});
}

}  // namespace
}  // namespace berth
