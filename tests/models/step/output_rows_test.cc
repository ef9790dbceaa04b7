#include "models/step/output_rows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace berth {
namespace {

class OutputRowsTest : public testing::Test {
 protected:
  OutputRowsTest() : ids_(100) { std::iota(ids_.begin(), ids_.end(), 0); }

  absl::Span<const int32_t> Ids(int64_t first, int64_t count) const {
    return absl::MakeConstSpan(ids_).subspan(first, count);
  }
  StepRow Decoding(int64_t start) const { return {.tokens = Ids(start, 1), .start = start, .sample = true}; }

  std::vector<int32_t> ids_;
  OutputRows outputs_;
};

std::vector<int32_t> ToVector(absl::Span<const int32_t> ids) { return {ids.begin(), ids.end()}; }

TEST_F(OutputRowsTest, AStepOfWhichAllIsReadStaysWhole) {
  StepRow scored = {.tokens = Ids(10, 3), .start = 10, .scored = Ids(11, 3)};
  EXPECT_FALSE(outputs_.Choose({.rows = {Decoding(7), scored}, .num_tokens = 4, .num_decode_rows = 1}));
  EXPECT_TRUE(outputs_.plan().empty());
  EXPECT_TRUE(outputs_.tokens().empty());
}

TEST_F(OutputRowsTest, OfAPromptTheLastTokenAndOfAChunkNone) {
  const StepRow chunk = {.tokens = Ids(0, 8), .prompt_length = 20, .sequence_length = 20};
  const StepRow end = {.tokens = Ids(16, 4), .start = 16, .sample = true, .prompt_length = 20, .sequence_length = 20};
  ASSERT_TRUE(outputs_.Choose({.rows = {Decoding(7), chunk, end}, .num_tokens = 13, .num_decode_rows = 1}));
  EXPECT_EQ(outputs_.tokens(), (std::vector<int64_t>{0, 12}));
  EXPECT_EQ(outputs_.plan().num_tokens, 2);
  ASSERT_EQ(outputs_.plan().rows.size(), 2u);
  EXPECT_EQ(outputs_.plan().rows[0].start, 7);
  const StepRow& last = outputs_.plan().rows[1];
  EXPECT_EQ(last.start, 19);
  EXPECT_EQ(ToVector(last.tokens), (std::vector<int32_t>{19}));
  EXPECT_TRUE(last.sample);
  EXPECT_EQ(last.prompt_length, 20);
  EXPECT_EQ(last.sequence_length, 20);

  ASSERT_TRUE(outputs_.Choose({.rows = {chunk}, .num_tokens = 8}));
  EXPECT_TRUE(outputs_.plan().empty());
  EXPECT_TRUE(outputs_.tokens().empty());
}

TEST_F(OutputRowsTest, DraftsAreReadAndTheTokenBeforeThem) {
  const StepRow row = {.tokens = Ids(5, 4), .start = 5, .sample = true, .drafts = Ids(50, 2)};
  ASSERT_TRUE(outputs_.Choose({.rows = {row}, .num_tokens = 6}));
  EXPECT_EQ(outputs_.tokens(), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(ToVector(outputs_.plan().rows[0].tokens), (std::vector<int32_t>{8}));
  EXPECT_EQ(ToVector(outputs_.plan().rows[0].drafts), (std::vector<int32_t>{50, 51}));
  EXPECT_EQ(outputs_.plan().rows[0].start, 8);
}

TEST_F(OutputRowsTest, ScoredTokensAreReadWithWhatIsBetweenThemAndTheSampledOne) {
  StepRow row = {.tokens = Ids(0, 10), .scored = Ids(3, 4), .first_scored = 2};
  ASSERT_TRUE(outputs_.Choose({.rows = {Decoding(30), row}, .num_tokens = 11}));
  EXPECT_EQ(outputs_.tokens(), (std::vector<int64_t>{0, 3, 4, 5, 6}));
  EXPECT_EQ(ToVector(outputs_.plan().rows[1].tokens), (std::vector<int32_t>{2, 3, 4, 5}));
  EXPECT_EQ(outputs_.plan().rows[1].first_scored, 0);
  EXPECT_EQ(ToVector(outputs_.plan().rows[1].scored), (std::vector<int32_t>{3, 4, 5, 6}));

  row.sample = true;
  ASSERT_TRUE(outputs_.Choose({.rows = {row}, .num_tokens = 10}));
  EXPECT_EQ(outputs_.tokens(), (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(OutputRowsTest, PooledTokensAreRead) {
  const StepRow row = {.tokens = Ids(0, 6), .num_pooled = 2};
  ASSERT_TRUE(outputs_.Choose({.rows = {row}, .num_tokens = 6}));
  EXPECT_EQ(outputs_.tokens(), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(outputs_.plan().rows[0].start, 4);
  EXPECT_EQ(outputs_.plan().rows[0].num_pooled, 2);
}

}  // namespace
}  // namespace berth
