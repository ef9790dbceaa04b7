#include "scheduler/output/token_bans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

Tokens Repeats(const Tokens& text, const Tokens& tokens, int64_t n) {
  Tokens banned;
  BanRepeats(text, tokens, n, &banned);
  return banned;
}

TEST(BanRepeats, BansWhatFollowedTheLastTokensBefore) {
  const Tokens text = {1, 2, 3, 1, 2, 4, 1, 2};
  EXPECT_THAT(Repeats(text, text, 3), ElementsAre(3, 4));
  EXPECT_THAT(Repeats(text, text, 2), ElementsAre(3, 4));
  EXPECT_THAT(Repeats(text, text, 1), ElementsAre(1, 2, 3, 1, 2, 4, 1, 2));
  EXPECT_THAT(Repeats(text, text, 4), IsEmpty());
  EXPECT_THAT(Repeats(text, text, 9), IsEmpty());
  EXPECT_THAT(Repeats({5, 5, 5}, {5, 5, 5}, 2), ElementsAre(5, 5));
}

TEST(BanRepeats, TheTextMayBeAnother) {
  EXPECT_THAT(Repeats({7, 8, 9}, {1, 7}, 2), ElementsAre(8));
  EXPECT_THAT(Repeats({7, 8, 9}, {1, 9}, 2), IsEmpty());
  EXPECT_THAT(Repeats({7, 8, 9}, {8}, 3), IsEmpty()) << "fewer tokens than n - 1";
  EXPECT_THAT(Repeats({}, {8}, 1), IsEmpty());
}

// transcribes _get_ngrams of transformers.
TEST(BanRepeats, FindsWhatATableOfAllNgramsHas) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    Tokens text(random() % 40);
    for (int32_t& token : text) token = static_cast<int32_t>(random() % 4);
    const size_t n = 1 + random() % 5;
    std::map<Tokens, std::multiset<int32_t>> table;
    for (size_t i = 0; i + n <= text.size(); ++i) {
      table[Tokens(text.begin() + i, text.begin() + i + n - 1)].insert(text[i + n - 1]);
    }
    const Tokens found = Repeats(text, text, static_cast<int64_t>(n));
    const bool enough = text.size() + 1 >= n;
    const std::multiset<int32_t> expected = enough ? table[Tokens(text.end() - (n - 1), text.end())] : table[{-1}];
    EXPECT_EQ(std::multiset<int32_t>(found.begin(), found.end()), expected) << "round " << round;
  }
}

Sequence SequenceOf(const TokenRules& rules, const Tokens& prompt) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = 10;
  request.rules = rules;
  return Sequence(request);
}

TEST(ApplyTokenRules, SuppressesAlwaysOrAtTheBeginning) {
  Request request;
  request.prompt = {1};
  request.max_tokens = 10;
  request.min_tokens = 1;
  request.stop_token_ids = {9};
  request.rules = {.suppressed = {5}, .suppressed_first = {6}};
  Sequence sequence(request);
  ApplyTokenRules(&sequence);
  EXPECT_THAT(sequence.banned, ElementsAre(9, 5, 6));
  sequence.tokens.push_back(2);
  ApplyTokenRules(&sequence);
  EXPECT_THAT(sequence.banned, ElementsAre(5));

  request.forced_first = {3};
  Sequence forced(request);
  ApplyTokenRules(&forced);
  EXPECT_THAT(forced.banned, ElementsAre(9, 5)) << "the first token is forced, so the second begins";
  forced.tokens.push_back(3);
  ApplyTokenRules(&forced);
  EXPECT_THAT(forced.banned, ElementsAre(5, 6));
}

TEST(ApplyTokenRules, BiasesTheLastTokenOfASequence) {
  Request request;
  request.prompt = {1, 2};
  request.max_tokens = 10;
  request.sampling.logit_bias = {{4, 1.0f}};
  request.rules.biases = {{{4}, 2.0f}, {{2, 7}, 3.0f}, {{1, 2, 7}, 9.0f}, {{2, 8}, -INFINITY}, {{2, 4}, 0.5f}};
  Sequence sequence(request);
  for (int again = 0; again < 2; ++again) {
    ApplyTokenRules(&sequence);
    EXPECT_THAT(sequence.request.sampling.logit_bias,
                ElementsAre(std::pair(4, 1.0f), std::pair(4, 2.5f), std::pair(7, 12.0f)));
    EXPECT_THAT(sequence.banned, ElementsAre(8));
  }
  sequence.tokens = {0, 1, 2};
  ApplyTokenRules(&sequence);
  EXPECT_EQ(sequence.request.sampling.logit_bias.back(), std::pair(7, 12.0f));
}

TEST(ApplyTokenRules, LooksForRepeatsInWhatAnEncoderReads) {
  Sequence decoder = SequenceOf({.no_repeat_ngram_size = 0, .no_repeat_input_ngram_size = 2}, {3, 4, 3});
  ApplyTokenRules(&decoder);
  EXPECT_THAT(decoder.banned, ElementsAre(4));
  decoder.tokens = {3, 4, 3, 5, 3};
  ApplyTokenRules(&decoder);
  EXPECT_THAT(decoder.banned, ElementsAre(4)) << "the output may repeat itself";

  Request request;
  request.prompt = {3};
  request.encoder_tokens = {3, 6};
  request.rules.no_repeat_input_ngram_size = 2;
  Sequence encoder(request);
  ApplyTokenRules(&encoder);
  EXPECT_THAT(encoder.banned, ElementsAre(6));
}

}  // namespace
}  // namespace berth
