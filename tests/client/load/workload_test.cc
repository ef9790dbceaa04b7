#include "client/load/workload.h"

#include <gtest/gtest.h>

#include <set>

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

}  // namespace
}  // namespace berth::cli
