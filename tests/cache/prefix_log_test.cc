#include "cache/prefix_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace berth {
namespace {

using Kind = PrefixLog::Kind;
using testing::ElementsAreArray;
using testing::IsEmpty;

// A node with the number `i`, and a few tokens that follow from it.
std::vector<int32_t> TokensOf(uint64_t i) { return std::vector<int32_t>(i % 5, static_cast<int32_t>(i)); }
PrefixLog::Record NodeOf(uint64_t i, const std::vector<int32_t>& tokens) {
  return {.kind = Kind::kNode, .node = i << 30, .parent = ~i, .number = static_cast<int32_t>(i) - 7, .tokens = tokens};
}

// Removes all records from `words`, which are those of the numbers from `*next` on.
void ReadAll(absl::Span<const int32_t> words, uint64_t* next) {
  for (; !words.empty(); ++*next) {
    const PrefixLog::Record record = PrefixLog::Read(&words);
    ASSERT_EQ(record.node, *next << 30);
    ASSERT_EQ(record.parent, ~*next);
    ASSERT_EQ(record.number, static_cast<int32_t>(*next) - 7);
    ASSERT_THAT(record.tokens, ElementsAreArray(TokensOf(*next)));
  }
}

void Append(PrefixLog* log, uint64_t i) {
  const std::vector<int32_t> tokens = TokensOf(i);
  log->Append(NodeOf(i, tokens));
}

TEST(PrefixLogTest, RecordsAreSeenOnceTheyArePublished) {
  PrefixLog log(64);
  std::vector<int32_t> words;
  uint64_t next = 0;
  for (uint64_t i = 0; i < 100; ++i) {  // round the ring many times
    Append(&log, i);
    EXPECT_TRUE(log.Take(&words));
    EXPECT_THAT(words, IsEmpty());
    const uint32_t wakes = log.num_wakes();
    log.Publish();
    EXPECT_EQ(log.num_wakes(), wakes + 1);
    log.Publish();
    EXPECT_EQ(log.num_wakes(), wakes + 1) << "nothing new";
    EXPECT_TRUE(log.Take(&words));
    ASSERT_NO_FATAL_FAILURE(ReadAll(words, &next));
  }
  EXPECT_EQ(next, 100u);
}

TEST(PrefixLogTest, TheReaderHearsOfALossAndRestartEndsIt) {
  PrefixLog log(64);
  std::vector<int32_t> words;
  for (uint64_t i = 0; i < 20; ++i) Append(&log, i);
  log.Publish();
  EXPECT_FALSE(log.Take(&words));
  uint64_t next = 0;
  ASSERT_NO_FATAL_FAILURE(ReadAll(words, &next));
  EXPECT_GT(next, 4u) << "the ones before the loss are there";
  Append(&log, 20);
  log.Publish();
  EXPECT_TRUE(log.Take(&words));
  EXPECT_THAT(words, IsEmpty()) << "after a loss, none is logged";
  log.Restart();
  Append(&log, 21);
  log.Publish();
  EXPECT_TRUE(log.Take(&words));
  next = 21;
  ASSERT_NO_FATAL_FAILURE(ReadAll(words, &next));
  EXPECT_EQ(next, 22u);
}

TEST(PrefixLogTest, AnotherThreadReadsWhatIsWritten) {
  constexpr uint64_t kCount = 20000;
  PrefixLog log(1 << 18);  // there is room for all
  std::thread writer([&log] {
    for (uint64_t i = 0; i < kCount; ++i) {
      Append(&log, i);
      if (i % 3 == 0 || i + 1 == kCount) log.Publish();
    }
  });
  std::vector<int32_t> words;
  uint64_t next = 0;
  while (next < kCount) {
    const uint32_t seen = log.num_wakes();
    EXPECT_TRUE(log.Take(&words));
    if (words.empty()) log.Wait(seen);
    ReadAll(words, &next);
    if (HasFatalFailure()) break;
  }
  writer.join();
  EXPECT_EQ(next, kCount);
}

}  // namespace
}  // namespace berth
