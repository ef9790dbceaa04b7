#include "scheduler/output/mask_workers.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/fake_constraint.h"

namespace berth {
namespace {

constexpr int64_t kVocab = 100;
constexpr int32_t kEnd = 42;

OutputConstraint Choice(std::vector<std::vector<int32_t>> choices) {
  Request request;
  request.constraint = std::make_shared<ChoiceConstraint>(std::move(choices), std::vector<int32_t>{kEnd}, kVocab);
  return OutputConstraint(request, 0);
}

std::vector<int32_t> Allowed(const RowMasks& masks, int64_t place) {
  const uint32_t* const mask = masks.Wait() + place * masks.num_words();
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < kVocab; ++t) {
    if ((mask[t / 32] >> (t % 32) & 1) != 0) tokens.push_back(t);
  }
  return tokens;
}

using Tokens = std::vector<int32_t>;

TEST(MaskWorkers, ComputeAMaskForEachPlaceOfEachRow) {
  for (const int64_t num_threads : {0, 1, 3}) {
    MaskWorkers workers(num_threads, kVocab);
    workers.Finish();  // nothing was started
    std::vector<OutputConstraint> constraints;
    for (int i = 0; i < 20; ++i) constraints.push_back(Choice({{1, 2, 3}, {1, 2, 4}, {i, 50}}));
    const std::vector<int32_t> drafts = {1, 2};
    for (int step = 0; step < 50; ++step) {
      std::vector<const RowMasks*> masks;
      for (size_t i = 0; i < constraints.size(); ++i) {
        const bool drafted = (i + step) % 2 == 0;
        masks.push_back(
            workers.Add(&constraints[i], drafted ? absl::MakeConstSpan(drafts) : absl::Span<const int32_t>()));
      }
      workers.Start();
      std::thread other([&] { EXPECT_FALSE(Allowed(*masks.back(), 0).empty()); });
      for (size_t i = 5; i < constraints.size(); ++i) {
        EXPECT_EQ(Allowed(*masks[i], 0), (Tokens{1, static_cast<int32_t>(i)}));
        if ((i + step) % 2 != 0) continue;
        EXPECT_EQ(Allowed(*masks[i], 1), (Tokens{2}));
        EXPECT_EQ(Allowed(*masks[i], 2), (Tokens{3, 4}));
      }
      other.join();
      workers.Finish();
    }
  }
}

TEST(MaskWorkers, MayEndWhileTheyCompute) {
  std::vector<OutputConstraint> constraints;
  for (int i = 0; i < 50; ++i) constraints.push_back(Choice({{1, 2, 3}}));
  MaskWorkers workers(2, kVocab);
  for (OutputConstraint& constraint : constraints) workers.Add(&constraint, {});
  workers.Start();
}

TEST(MaskWorkers, FindForcedTokensAndCheckDrafts) {
  for (const int64_t num_threads : {0, 2}) {
    MaskWorkers workers(num_threads, kVocab);
    std::vector<OutputConstraint> constraints;
    std::vector<std::vector<int32_t>> drafts(20, {1, 2, 4, 9});
    for (int i = 0; i < 20; ++i) constraints.push_back(Choice({{1, 2, 3 + i % 2, 7}}));
    for (int i = 0; i < 20; ++i) {
      workers.AddForced(&constraints[i], 1 + i % 3);
      workers.AddCheck(&constraints[19 - i], &drafts[19 - i]);
      if (i % 10 == 9) workers.Run();
    }
    workers.Run();  // nothing was added
    for (int i = 0; i < 20; ++i) {
      const Tokens all = {1, 2, 3 + i % 2, 7};
      EXPECT_EQ(constraints[i].forced(), absl::MakeConstSpan(all).first(1 + i % 3));
      EXPECT_EQ(drafts[i], i % 2 == 0 ? (Tokens{1, 2}) : (Tokens{1, 2, 4}));
    }
  }
}

TEST(OutputConstraint, ADeadEndEmptiesTheMasksFromItsPlaceOn) {
  FakeConstraint::Options options = {.seed = 1, .forced = 100, .complete = 0, .fails_at = 2};
  Request request;
  request.constraint = std::make_shared<FakeConstraint>(options);
  OutputConstraint constraint(request, 0);
  std::vector<uint32_t> words(3 * 4, ~0u);
  constraint.FillMasks({}, absl::MakeSpan(words).first(4));
  EXPECT_TRUE(constraint.error().ok());
  int32_t first = 0;
  while ((words[first / 32] >> (first % 32) & 1) == 0) ++first;
  OutputConstraint after = constraint.Clone();
  after.Accept(first);
  after.FindForced(9);
  const std::vector<int32_t> forced(after.forced().begin(), after.forced().end());
  ASSERT_EQ(forced.size(), 1u) << "up to the parser's limit";
  const std::vector<int32_t> drafts = {first, forced[0]};
  constraint.FillMasks(drafts, absl::MakeSpan(words));
  EXPECT_FALSE(constraint.error().ok()) << "which would end the output if it came there";
  for (int64_t w = 0; w < 4; ++w) EXPECT_EQ(words[8 + w], 0u);
  EXPECT_NE(words[4 + forced[0] / 32], 0u);
  constraint.FillMasks({}, absl::MakeSpan(words).first(4));
  EXPECT_TRUE(constraint.error().ok()) << "it did not";
  after.Accept(forced[0]);
  after.FillMasks({}, absl::MakeSpan(words).first(4));
  EXPECT_EQ(after.error().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(words[0] | words[1] | words[2] | words[3], 0u);
}

TEST(OutputConstraint, WithoutOneAnythingMayCome) {
  OutputConstraint none;
  EXPECT_FALSE(none.applies());
  EXPECT_FALSE(none.complete());
  std::vector<int32_t> tokens = {1, 2};
  none.KeepAllowed(&tokens);
  EXPECT_EQ(tokens.size(), 2u);
  none.Accept(3);
  none.Close();
  EXPECT_TRUE(none.Clone().error().ok());
}

}  // namespace
}  // namespace berth
