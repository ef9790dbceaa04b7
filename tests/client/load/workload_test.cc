#include "client/load/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace berth::cli {
namespace {

v1::GetModelInfoResponse Model(int vocab_size, std::vector<int32_t> end_tokens, int max_sequence_tokens = 0) {
  v1::GetModelInfoResponse model;
  model.set_vocab_size(vocab_size);
  model.mutable_eos_token_ids()->Add(end_tokens.begin(), end_tokens.end());
  model.mutable_limits()->set_max_sequence_tokens(max_sequence_tokens);
  return model;
}

Workload Make(Workload::Options options, const v1::GetModelInfoResponse& model) {
  auto workload = Workload::Create(std::move(options), model);
  EXPECT_TRUE(workload.ok()) << workload.status();
  return *workload;
}

TEST(Workload, PromptsUseTheVocabularyWithoutItsEndTokens) {
  const Workload workload = Make({.prompt_tokens = LengthDistribution::Fixed(400)}, Model(8, {3, 7, 3, 99, -1}));
  const WorkItem item = workload.Make(0);
  EXPECT_EQ(item.prompt_tokens, 400);
  const std::set<int32_t> ids(item.request.token_ids().ids().begin(), item.request.token_ids().ids().end());
  EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2, 4, 5, 6}));
}

TEST(Workload, OutputsAreExactAndGreedy) {
  const Workload workload = Make({.output_tokens = LengthDistribution::Fixed(5)}, Model(8, {}));
  const WorkItem item = workload.Make(0);
  EXPECT_EQ(item.request.stopping().max_tokens(), 5u);
  EXPECT_TRUE(item.request.stopping().ignore_eos());
  EXPECT_TRUE(item.request.sampling().has_temperature());
  EXPECT_EQ(item.request.sampling().temperature(), 0);
  EXPECT_FALSE(item.request.sampling().has_seed());
}

TEST(Workload, AnItemDependsOnSeedAndIndexAlone) {
  const auto model = Model(1000, {});
  const Workload one = Make({.temperature = 1, .seed = 5}, model);
  const Workload same = Make({.temperature = 1, .seed = 5}, model);
  const Workload other = Make({.temperature = 1, .seed = 6}, model);
  const std::string third = one.Make(3).request.SerializeAsString();
  EXPECT_EQ(third, same.Make(3).request.SerializeAsString());
  EXPECT_NE(third, one.Make(4).request.SerializeAsString());
  EXPECT_NE(third, other.Make(3).request.SerializeAsString());
}

TEST(Workload, RepeatsAfterTheDistinctItems) {
  const Workload workload = Make({.num_distinct = 3, .seed = 5}, Model(1000, {}));
  EXPECT_EQ(workload.Make(1).request.SerializeAsString(), workload.Make(4).request.SerializeAsString());
  EXPECT_EQ(workload.Make(4).reference, 1);
}

TEST(Workload, ShortensToTheServersLongestSequence) {
  const auto model = Model(8, {}, 100);
  const auto lengths = [&](int64_t prompt, int64_t output) {
    const WorkItem item =
        Make({.prompt_tokens = LengthDistribution::Fixed(prompt), .output_tokens = LengthDistribution::Fixed(output)},
             model)
            .Make(0);
    return std::make_tuple(item.prompt_tokens, item.output_tokens, item.shortened);
  };
  EXPECT_EQ(lengths(60, 40), std::make_tuple(60, 40, false));
  EXPECT_EQ(lengths(60, 41), std::make_tuple(60, 40, true));
  EXPECT_EQ(lengths(200, 40), std::make_tuple(99, 1, true));
}

TEST(Workload, LinesAreSentInTurn) {
  const Workload workload = Make({.prompts = {"a", "b"}}, Model(8, {}));
  EXPECT_EQ(workload.Make(0).request.prompt(), "a");
  EXPECT_EQ(workload.Make(3).request.prompt(), "b");
  EXPECT_EQ(workload.Make(3).prompt_tokens, -1);
}

TEST(Workload, RefusesAModelWithoutVocabulary) {
  EXPECT_EQ(Workload::Create({}, Model(0, {})).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Workload::Create({}, Model(1, {0})).status().code(), absl::StatusCode::kFailedPrecondition);
}

std::vector<int32_t> PromptOf(const WorkItem& item) {
  return {item.request.token_ids().ids().begin(), item.request.token_ids().ids().end()};
}

Workload::Options Talk(History history) {
  return {.prompt_tokens = LengthDistribution::Fixed(40),
          .output_tokens = LengthDistribution::Fixed(4),
          .num_turns = 3,
          .turn_tokens = LengthDistribution::Fixed(10),
          .history = history};
}

TEST(Conversation, GrowsByAnswersAndNewTokens) {
  const Workload workload = Make(Talk(History::kGrow), Model(1000, {}));
  Conversation talk = workload.Start(0);
  const std::vector<int32_t> first = PromptOf(*talk.Next({}));
  const std::vector<int32_t> second = PromptOf(*talk.Next({1, 2, 3, 4}));
  ASSERT_EQ(second.size(), 54u);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  EXPECT_EQ(std::vector<int32_t>(second.begin() + 40, second.begin() + 44), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(PromptOf(*talk.Next({5, 6, 7, 8})).size(), 68u);
  EXPECT_FALSE(talk.Next({9}).has_value());
}

TEST(Conversation, ChangesTheFrontOrStripsAnswers) {
  const Workload front = Make(Talk(History::kFront), Model(100000, {}));
  Conversation talk = front.Start(0);
  const std::vector<int32_t> first = PromptOf(*talk.Next({}));
  const std::vector<int32_t> second = PromptOf(*talk.Next({1, 2, 3, 4}));
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 16, second.begin()));
  EXPECT_NE(first[16], second[16]);
  EXPECT_TRUE(std::equal(first.begin() + 24, first.end(), second.begin() + 24));
  const Workload strip = Make(Talk(History::kStrip), Model(1000, {}));
  Conversation stripped = strip.Start(0);
  stripped.Next({});
  const std::vector<int32_t> turn = PromptOf(*stripped.Next({1, 2, 3, 4}));
  ASSERT_EQ(turn.size(), 52u);
  EXPECT_EQ(std::vector<int32_t>(turn.begin() + 40, turn.begin() + 42), (std::vector<int32_t>{3, 4}));
}

TEST(Conversation, AnUnrelatedRequestComesBetweenTurns) {
  const Workload workload = Make(Talk(History::kSide), Model(1000, {}));
  Conversation talk = workload.Start(0);
  const std::vector<int32_t> first = PromptOf(*talk.Next({}));
  EXPECT_EQ(PromptOf(*talk.Next({1, 2, 3, 4})).size(), 10u);
  const std::vector<int32_t> second = PromptOf(*talk.Next({9, 9, 9, 9}));
  ASSERT_EQ(second.size(), 54u);
  EXPECT_EQ(second[40], 1);
  EXPECT_EQ(PromptOf(*talk.Next({5, 6, 7, 8})).size(), 10u);
  EXPECT_EQ(PromptOf(*talk.Next({9, 9, 9, 9})).size(), 68u);
  EXPECT_FALSE(talk.Next({9}).has_value());
}

TEST(Conversation, EndsWhereTheNextTurnHasNoRoom) {
  const Workload workload = Make(Talk(History::kGrow), Model(1000, {}, 57));
  Conversation talk = workload.Start(0);
  ASSERT_TRUE(talk.Next({}).has_value());
  EXPECT_FALSE(talk.Next({1, 2, 3, 4}).has_value());  // 54 + 4 tokens
}

TEST(Workload, PromptsShareTheirBeginnings) {
  const Workload workload =
      Make({.prompt_tokens = LengthDistribution::Fixed(4), .prefix_tokens = 20, .num_prefixes = 2}, Model(100000, {}));
  std::set<std::vector<int32_t>> beginnings, ends;
  for (int i = 0; i < 20; ++i) {
    const std::vector<int32_t> prompt = PromptOf(workload.Make(i));
    ASSERT_EQ(prompt.size(), 24u);
    beginnings.insert({prompt.begin(), prompt.begin() + 20});
    ends.insert({prompt.begin() + 20, prompt.end()});
  }
  EXPECT_EQ(beginnings.size(), 2u);
  EXPECT_EQ(ends.size(), 20u);
}

TEST(Workload, ReplaysATrace) {
  const Workload workload =
      Make({.trace = {{.arrival = absl::ZeroDuration(), .prompt_tokens = 12, .output_tokens = 3, .shared = {{7, 10}}},
                      {.arrival = absl::Seconds(2), .prompt_tokens = 10, .output_tokens = 5, .shared = {{7, 10}}}}},
           Model(1000, {}));
  EXPECT_EQ(workload.num_conversations(), 2);
  EXPECT_EQ(workload.Arrivals(), (std::vector<absl::Duration>{absl::ZeroDuration(), absl::Seconds(2)}));
  const std::vector<int32_t> one = PromptOf(workload.Make(0));
  const std::vector<int32_t> other = PromptOf(workload.Make(1));
  ASSERT_EQ(one.size(), 12u);
  ASSERT_EQ(other.size(), 10u);
  EXPECT_TRUE(std::equal(other.begin(), other.end(), one.begin()));
  EXPECT_EQ(workload.Make(1).output_tokens, 5);
}

}  // namespace
}  // namespace berth::cli
