#include "models/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "models/sampling/philox.h"

namespace berth {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A row with one new token at position 9 unless told otherwise, and what it borrows.
struct Case {
  SamplingParams params;
  std::vector<int32_t> history = {0};
  int64_t prompt_length = 1;
  std::vector<int32_t> banned;
  int64_t start = 9;
  std::vector<int32_t> forced;
  std::shared_ptr<RowMasks> masks;
  bool rank_allowed = false;

  StepRow Row() const {
    StepRow row;
    row.tokens = absl::MakeSpan(history).last(1);
    row.start = start;
    row.sample = true;
    row.sampling = &params;
    row.history = history;
    row.prompt_length = prompt_length;
    row.banned = banned;
    row.forced = forced;
    row.masks = masks.get();
    row.rank_allowed = rank_allowed;
    return row;
  }
};

RowResult Sample(Sampler& sampler, const std::vector<float>& logits, const Case& c) {
  RowResult result;
  sampler.SampleRow(logits, c.Row(), &result);
  return result;
}

RowResult Sample(const std::vector<float>& logits, const Case& c) {
  Sampler sampler;
  return Sample(sampler, logits, c);
}

std::map<int32_t, double> Distribution(const std::vector<float>& logits, const Case& c) {
  Sampler sampler;
  EXPECT_GE(Sample(sampler, logits, c).token, 0);
  std::map<int32_t, double> distribution;
  for (auto [token, p] : sampler.LastDistribution()) distribution[token] = p;
  return distribution;
}

std::set<int32_t> Kept(const std::vector<float>& logits, const Case& c) {
  std::set<int32_t> kept;
  for (auto [token, p] : Distribution(logits, c)) kept.insert(token);
  return kept;
}

std::vector<float> RandomLogits(int64_t vocab, uint64_t seed, float spread = 3) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random) * spread;
  return logits;
}

TEST(Philox, MatchesThePublishedVectors) {
  // Random123's kat_vectors, philox4x32 10.
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformCoversTheUnitInterval) {
  double sum = 0;
  for (int64_t position = 0; position < 10000; ++position) {
    const double u = UniformAt(42, position);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_NE(UniformAt(1, 0), UniformAt(2, 0));
  EXPECT_NE(UniformAt(1, 0), UniformAt(uint64_t{1} << 32 | 1, 0));
}

TEST(Sampler, GreedyTakesTheLowestOfEqualMaxima) {
  for (int64_t vocab : {1, 2, 33, 1024, 1025, 151936}) {
    std::vector<float> logits = RandomLogits(vocab, 7);
    logits.back() = *std::max_element(logits.begin(), logits.end());
    const int32_t expected = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(Sample(logits, {.params = {.temperature = 0}}).token, expected) << vocab;
    EXPECT_EQ(Sample(logits, {.params = {.top_p = 1e-9f}}).token, expected) << vocab;
  }
  EXPECT_EQ(Sample({-0.0f, 0.0f}, {.params = {.temperature = 0}}).token, 0);
  EXPECT_EQ(Sample({-kInf, -5.0f}, {.params = {.temperature = 0}}).token, 1);
}

TEST(Sampler, ScoresATokenAndTheLikeliest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  Sampler sampler;
  for (const size_t count : {0, 1, 20, 1000}) {
    std::vector<TokenLogprob> scores(1 + count);
    sampler.Score(logits, 77, absl::MakeSpan(scores));
    EXPECT_EQ(scores[0].token, 77);
    EXPECT_NEAR(scores[0].logprob, logits[77] - std::log(sum), 1e-5);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(scores[i + 1].token, order[i]);
      EXPECT_NEAR(scores[i + 1].logprob, logits[order[i]] - std::log(sum), 1e-5);
    }
  }
}

TEST(Sampler, ScoresOfTooFewTokensAndOfBadLogitsAreNaN) {
  Sampler sampler;
  std::vector<TokenLogprob> scores(4);
  sampler.Score({0, -kInf, 0}, 1, absl::MakeSpan(scores));
  EXPECT_EQ(scores[0].logprob, -kInf);
  EXPECT_NEAR(scores[1].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(scores[2].token, 2);
  EXPECT_TRUE(std::isnan(scores[3].logprob));
  for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    sampler.Score({0, bad, 1}, 2, absl::MakeSpan(scores));
    for (const TokenLogprob& score : scores) EXPECT_TRUE(std::isnan(score.logprob));
  }
}

TEST(Sampler, TopKKeepsTheLargestAndTheirTies) {
  const std::vector<float> logits = {1, 4, 2, 4, 3, 2};
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 1}}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 3}}), (std::set<int32_t>{1, 3, 4}));
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 4}}), (std::set<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 100}}).size(), 6u);
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 0}}).size(), 6u);
}

TEST(Sampler, TopKAgreesWithASortAtEveryK) {
  const std::vector<float> logits = RandomLogits(5000, 3);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int32_t k : {1, 2, 15, 16, 17, 39, 40, 41, 80, 500, 4998, 4999}) {
    const std::set<int32_t> kept = Kept(logits, {.params = {.top_k = k}});
    int32_t expected = k;
    while (expected < 5000 && sorted[expected] == sorted[k - 1]) ++expected;
    ASSERT_EQ(kept.size(), static_cast<size_t>(expected));
    for (int32_t id : kept) EXPECT_GE(logits[id], sorted[k - 1]);
  }
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  std::vector<float> logits;
  for (double p : {0.1, 0.4, 0.2, 0.3}) logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_EQ(Kept(logits, {.params = {.top_p = 0.0f}}), (std::set<int32_t>{1}));
  EXPECT_EQ(Kept(logits, {.params = {.top_p = 0.35f}}), (std::set<int32_t>{1}));
  EXPECT_EQ(Kept(logits, {.params = {.top_p = 0.6f}}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Kept(logits, {.params = {.top_p = 0.8f}}), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Kept(logits, {.params = {.top_p = 0.999f}}).size(), 4u);
  // Among equals the lower ids stay.
  EXPECT_EQ(Kept({0, 0, 0, 0}, {.params = {.top_p = 0.5f}}), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(Kept(std::vector<float>(1000, 1.5f), {.params = {.top_p = 0.25f}}).size(), 250u);
}

// What top_p keeps, by a sort of the vocabulary.
std::set<int32_t> SortedNucleus(const std::vector<float>& logits, float temperature, float top_p) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights;
  double total = 0;
  for (int32_t id : order) {
    weights.push_back(std::exp((double{logits[id]} - logits[order[0]]) * (1.0 / double{temperature})));
    total += weights.back();
  }
  std::set<int32_t> kept;
  double before = 0;
  for (size_t i = 0; i < order.size() && (i == 0 || before < top_p * total); ++i) {
    if (weights[i] > 1e-307) kept.insert(order[i]);
    before += weights[i];
  }
  return kept;
}

TEST(Sampler, TopPAgreesWithASortWhateverTheShape) {
  for (float spread : {0.0f, 0.01f, 1.0f, 5.0f, 100.0f}) {
    for (float temperature : {0.05f, 1.0f, 20.0f}) {
      const std::vector<float> logits = RandomLogits(4000, 11, spread);
      for (float top_p : {0.01f, 0.5f, 0.9f, 0.999999f}) {
        EXPECT_EQ(Kept(logits, {.params = {.temperature = temperature, .top_p = top_p}}),
                  SortedNucleus(logits, temperature, top_p))
            << spread << " " << temperature << " " << top_p;
      }
    }
  }
}

TEST(Sampler, MinPIsRelativeToTheLikeliest) {
  std::vector<float> logits;
  for (double p : {0.5, 0.25, 0.15, 0.1}) logits.push_back(static_cast<float>(std::log(p)));
  EXPECT_EQ(Kept(logits, {.params = {.min_p = 0.25f}}), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(Kept(logits, {.params = {.min_p = 0.49f}}), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(Kept(logits, {.params = {.min_p = 1.0f}}), (std::set<int32_t>{0}));
  // Temperature comes first: at 0.5 the ratios are squared.
  EXPECT_EQ(Kept(logits, {.params = {.temperature = 0.5f, .min_p = 0.26f}}), (std::set<int32_t>{0}));
}

TEST(Sampler, TopPCountsOnlyWhatTopKKept) {
  std::vector<float> logits;
  for (double p : {0.4, 0.3, 0.2, 0.1}) logits.push_back(static_cast<float>(std::log(p)));
  // 0.4 / (0.4 + 0.3) = 0.571.
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 2, .top_p = 0.55f}}), (std::set<int32_t>{0}));
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 0, .top_p = 0.55f}}), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, RepetitionPenaltyMeetsEachTokenOnce) {
  const Case c = {
      .params = {.temperature = 0, .repetition_penalty = 2}, .history = {0, 0, 1, 1, 1}, .prompt_length = 1};
  // 3.9 / 2 and -0.4 * 2; once only.
  EXPECT_EQ(Sample({3.9f, -0.4f, 1.9f}, c).token, 0);
  EXPECT_EQ(Sample({3.9f, -0.4f, 1.96f}, c).token, 2);
  EXPECT_EQ(Sample({-9.0f, -0.4f, -0.81f}, c).token, 1);
  EXPECT_EQ(Sample({-9.0f, -0.4f, -0.79f}, c).token, 2);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesCountTheOutputOnly) {
  Case c = {.params = {.temperature = 0, .presence_penalty = 1}, .history = {0, 1, 1, 1}, .prompt_length = 1};
  EXPECT_EQ(Sample({5.0f, 6.5f}, c).token, 1);
  EXPECT_EQ(Sample({5.6f, 6.5f}, c).token, 0);
  c.params = {.temperature = 0, .frequency_penalty = 1};
  EXPECT_EQ(Sample({3.4f, 6.5f}, c).token, 1);
  EXPECT_EQ(Sample({3.6f, 6.5f}, c).token, 0);
  // The scratch counts are cleared between rows.
  Sampler sampler;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Sample(sampler, {3.4f, 6.5f}, c).token, 1);
  c.prompt_length = 4;
  EXPECT_EQ(Sample({3.6f, 3.7f}, c).token, 1);
}

TEST(Sampler, BiasComesBeforeBansAndPenalties) {
  Case c = {.params = {.temperature = 0, .repetition_penalty = 2, .logit_bias = {{0, 4.0f}}}};
  EXPECT_EQ(Sample({2.0f, 3.5f}, c).token, 1);  // (2 + 4) / 2 < 3.5
  EXPECT_EQ(Sample({2.0f, 2.5f}, c).token, 0);
  c.banned = {0};
  c.params.logit_bias = {{0, 100.0f}};
  EXPECT_EQ(Sample({2.0f, 2.5f}, c).token, 1);
}

TEST(Sampler, TokensOutsideTheVocabularyArePassedOver) {
  Case c;
  c.params = {.temperature = 0, .repetition_penalty = 2, .presence_penalty = 1, .logit_bias = {{7, 9.0f}, {-1, 9.0f}}};
  c.history = {-5, 12, 2, 1};
  c.prompt_length = 2;
  c.banned = {-1, 3, 1 << 30};
  EXPECT_EQ(Sample({1.0f, 2.0f, 3.0f}, c).token, 0);
}

TEST(Sampler, AllBannedButOne) {
  for (int32_t vocab : {2, 33, 5000}) {
    Case c;
    for (int32_t i = 0; i < vocab; ++i) {
      if (i != vocab / 2) c.banned.push_back(i);
    }
    const std::vector<float> logits = RandomLogits(vocab, 1);
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 5, .top_p = 0.5f},
          SamplingParams{.top_p = 0.9f}, SamplingParams{.min_p = 1}}) {
      c.params = params;
      EXPECT_EQ(Sample(logits, c).token, vocab / 2);
    }
    c.banned.push_back(vocab / 2);
    EXPECT_EQ(Sample(logits, c).token, RowResult::kBadLogits);
  }
}

TEST(Sampler, ForcedTokensAreEquallyLikelyAndTheOnlyOnes) {
  const std::vector<float> logits = RandomLogits(3000, 4);
  Case c = {.params = {.temperature = 0, .repetition_penalty = 2, .logit_bias = {{1, 50.0f}}, .num_logprobs = 0},
            .banned = {1234},
            .forced = {1234}};
  EXPECT_EQ(Sample(logits, c).token, 1234) << "forced after bias and bans";
  EXPECT_LT(Sample(logits, c).logprob, -1) << "the model's own logprob, not that of the forced choice";
  c.forced = {2000, 7};
  EXPECT_EQ(Sample(logits, c).token, 7);
  c.params = {.temperature = 0.3f};
  EXPECT_EQ(Distribution(logits, c), (std::map<int32_t, double>{{7, 0.5}, {2000, 0.5}}));
}

TEST(Sampler, BadLogitsAreSaid) {
  for (float temperature : {0.0f, 1.0f}) {
    for (int64_t vocab : {1, 2, 33, 2000}) {
      const Case c = {.params = {.temperature = temperature, .num_logprobs = 2}};
      for (float bad : {NAN, -NAN, kInf}) {
        for (int64_t at : {int64_t{0}, vocab / 2, vocab - 1}) {
          std::vector<float> logits = RandomLogits(vocab, 5);
          logits[at] = bad;
          const RowResult result = Sample(logits, c);
          EXPECT_EQ(result.token, RowResult::kBadLogits);
          EXPECT_TRUE(result.top.empty());
        }
      }
      EXPECT_EQ(Sample(std::vector<float>(vocab, -kInf), c).token, RowResult::kBadLogits);
    }
  }
  // Hidden by a ban, it is the model's fault still.
  EXPECT_EQ(Sample({NAN, 1.0f}, {.banned = {0}}).token, RowResult::kBadLogits);
}

// Masks that allow these tokens, one set for each place.
std::shared_ptr<RowMasks> Allow(int64_t vocab, const std::vector<std::set<int32_t>>& places) {
  auto masks = std::make_shared<RowMasks>();
  const int64_t num_words = (vocab + 31) / 32;
  const absl::Span<uint32_t> words = masks->Reset(static_cast<int64_t>(places.size()), num_words);
  for (size_t i = 0; i < places.size(); ++i) {
    for (int32_t token : places[i]) words[i * num_words + token / 32] |= uint32_t{1} << (token % 32);
  }
  masks->SetDone();
  return masks;
}

// The bits of the choice and of the distribution are those on logits where the others are -inf.
TEST(Sampler, AMaskHidesAllOtherTokensAndChangesNothingElse) {
  std::mt19937_64 random(1);
  const auto one_of = [&](auto... values) { return std::array{values...}[random() % sizeof...(values)]; };
  int sampled = 0;
  for (int64_t vocab : {1, 2, 15, 16, 33, 40, 250, 257, 1000, 1024, 5003, 40000}) {
    for (int i = 0; i < (vocab > 10000 ? 20 : 100); ++i) {
      const std::vector<float> logits = RandomLogits(vocab, random(), one_of(0.0f, 0.5f, 3.0f, 10.0f));
      std::set<int32_t> allowed;
      const uint64_t share = one_of(1, 2, 30, 1000);
      for (int32_t t = 0; t < vocab; ++t) {
        if (random() % share == 0) allowed.insert(t);
      }
      allowed.insert(static_cast<int32_t>(random() % vocab));
      std::vector<float> hidden = logits;
      for (int32_t t = 0; t < vocab; ++t) {
        if (!allowed.contains(t)) hidden[t] = -kInf;
      }
      Case c;
      c.params = {.temperature = one_of(0.0f, 0.3f, 1.0f, 5.0f),
                  .top_k = one_of(0, 0, 1, 3, 40, 700),
                  .top_p = one_of(1.0f, 1.0f, 0.3f, 0.95f, 0.0f),
                  .min_p = one_of(0.0f, 0.0f, 0.1f),
                  .repetition_penalty = one_of(1.0f, 1.0f, 1.3f),
                  .presence_penalty = one_of(0.0f, 0.0f, 0.5f),
                  .seed = random()};
      const int32_t any = static_cast<int32_t>(random() % vocab);
      if (i % 3 == 0) c.params.logit_bias = {{any, 4.0f}};
      for (size_t t = random() % 50; t > 0; --t) c.history.push_back(static_cast<int32_t>(random() % vocab));
      Case masked = c;
      masked.masks = Allow(vocab, {allowed});
      Sampler plain_sampler;
      Sampler masked_sampler;
      const RowResult expected = Sample(plain_sampler, hidden, c);
      const RowResult result = Sample(masked_sampler, logits, masked);
      ASSERT_EQ(result.token, expected.token) << "vocabulary " << vocab << ", case " << i;
      if (result.token < 0 || c.params.temperature == 0) continue;
      ++sampled;
      // With top_k the candidates lie otherwise, so that sums may differ in the last bit.
      const auto kept = masked_sampler.LastDistribution();
      const auto expected_kept = plain_sampler.LastDistribution();
      ASSERT_EQ(kept.size(), expected_kept.size());
      for (size_t t = 0; t < kept.size(); ++t) {
        ASSERT_EQ(kept[t].first, expected_kept[t].first);
        ASSERT_NEAR(kept[t].second, expected_kept[t].second, c.params.top_k > 0 ? 1e-14 : 0);
      }
    }
  }
  EXPECT_GT(sampled, 500);
}

TEST(Sampler, TheMaskComesAfterBiasBansPenaltiesAndForcedTokensAndBeforeTruncation) {
  const std::vector<float> logits = {1, 2, 3, 4};
  Case c = {.params = {.temperature = 0}, .masks = Allow(4, {{0, 1}})};
  EXPECT_EQ(Sample(logits, c).token, 1);
  c.params.logit_bias = {{0, 5.0f}, {3, 100.0f}};
  EXPECT_EQ(Sample(logits, c).token, 0) << "a bias chooses among the allowed";
  c.banned = {0};
  EXPECT_EQ(Sample(logits, c).token, 1);
  c.banned = {0, 1};
  EXPECT_EQ(Sample(logits, c).token, RowResult::kNoAllowedToken);
  c.banned = {};
  c.forced = {1, 2};
  EXPECT_EQ(Sample(logits, c).token, 1);
  c.forced = {2};
  EXPECT_EQ(Sample(logits, c).token, RowResult::kNoAllowedToken);
  // top_k and top_p count what the mask left.
  EXPECT_EQ(Kept(logits, {.params = {.top_k = 2}, .masks = Allow(4, {{0, 1, 2}})}), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(Kept(logits, {.params = {.top_p = 0.7f}, .masks = Allow(4, {{0, 1}})}), (std::set<int32_t>{1}));
  EXPECT_EQ(Kept(logits, {.params = {.min_p = 0.3f}, .masks = Allow(4, {{0, 1}})}), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, AMaskMayLeaveOneTokenOrNone) {
  for (int32_t vocab : {1, 2, 33, 5000}) {
    std::vector<float> logits = RandomLogits(vocab, 11);
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 5, .top_p = 0.5f},
          SamplingParams{.top_p = 0.9f}, SamplingParams{.min_p = 1}, SamplingParams{.num_logprobs = 3}}) {
      Case c = {.params = params, .masks = Allow(vocab, {{vocab / 2}})};
      EXPECT_EQ(Sample(logits, c).token, vocab / 2);
      c.masks = Allow(vocab, {{}});
      const RowResult none = Sample(logits, c);
      EXPECT_EQ(none.token, RowResult::kNoAllowedToken);
      EXPECT_TRUE(none.top.empty());
    }
  }
  // What the mask hides must be a number still, and a model that rules all out is at fault whatever the mask.
  EXPECT_EQ(Sample({NAN, 1.0f}, {.masks = Allow(2, {{1}})}).token, RowResult::kBadLogits);
  EXPECT_EQ(Sample({kInf, 1.0f}, {.masks = Allow(2, {{1}})}).token, RowResult::kBadLogits);
  EXPECT_EQ(Sample({-kInf, -kInf}, {.masks = Allow(2, {{1}})}).token, RowResult::kBadLogits);
  EXPECT_EQ(Sample({1.0f, -kInf}, {.masks = Allow(2, {{1}})}).token, RowResult::kNoAllowedToken);
}

TEST(Sampler, LogprobsAreBeforeOrAfterTheMask) {
  const std::vector<float> logits = {1, 5, 3, 2};
  Case c = {.params = {.temperature = 0, .num_logprobs = 3}, .masks = Allow(4, {{0, 2}})};
  double all = 0;
  for (float x : logits) all += std::exp(double{x});
  RowResult result = Sample(logits, c);
  EXPECT_EQ(result.token, 2);
  EXPECT_NEAR(result.logprob, 3 - std::log(all), 1e-6);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].token, 1) << "the model's own";
  c.rank_allowed = true;
  result = Sample(logits, c);
  EXPECT_NEAR(result.logprob, 3 - std::log(all), 1e-6);
  ASSERT_EQ(result.top.size(), 2u);
  EXPECT_EQ(result.top[0].token, 2);
  EXPECT_NEAR(result.top[1].logprob, 1 - std::log(all), 1e-6);
  c.rank_allowed = false;
  c.params.logprobs_after_mask = true;
  result = Sample(logits, c);
  const double allowed = std::exp(1.0) + std::exp(3.0);
  EXPECT_NEAR(result.logprob, 3 - std::log(allowed), 1e-6);
  ASSERT_EQ(result.top.size(), 2u);
  EXPECT_EQ(result.top[1].token, 0);
  EXPECT_NEAR(result.top[1].logprob, 1 - std::log(allowed), 1e-6);
  c.masks = Allow(4, {{0}});
  result = Sample(logits, c);
  EXPECT_EQ(result.logprob, 0) << "the only token";
  ASSERT_EQ(result.top.size(), 1u);
  EXPECT_EQ(result.top[0].logprob, 0);
  c.masks = nullptr;
  EXPECT_NEAR(Sample(logits, c).logprob, 5 - std::log(all), 1e-6) << "without a mask there is no after";
}

TEST(Sampler, EachDraftsPlaceHasAMaskOfItsOwn) {
  const std::vector<float> logits = {1, 2, 3, 4};
  const Case c = {.params = {.temperature = 0}, .masks = Allow(4, {{0}, {1}, {2}})};
  const std::vector<int32_t> drafts = {0, 1};
  StepRow row = c.Row();
  row.drafts = drafts;
  Sampler sampler;
  RowResult result;
  for (const auto& [draft, expected] : {std::pair<int64_t, int32_t>{0, 0}, {1, 1}, {kAfterDrafts, 2}}) {
    sampler.SampleRow(logits, row, &result, draft);
    EXPECT_EQ(result.token, expected);
  }
}

TEST(Sampler, ExtremeTemperatures) {
  const std::vector<float> logits = RandomLogits(33, 2);
  const int32_t best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (float temperature : {1e-45f, 1e-30f, 1e-6f}) {
    EXPECT_EQ(Kept(logits, {.params = {.temperature = temperature}}), std::set<int32_t>{best});
    EXPECT_EQ(Sample(RandomLogits(2000, 2), {.params = {.temperature = temperature, .top_p = 0.9f}}).token,
              Sample(RandomLogits(2000, 2), {.params = {.temperature = 0}}).token);
  }
  for (auto [token, p] : Distribution(logits, {.params = {.temperature = 1e30f}})) EXPECT_NEAR(p, 1.0 / 33, 1e-9);
  EXPECT_EQ(Distribution({-kInf, 1.0f}, {.params = {.temperature = 3e38f}}), (std::map<int32_t, double>{{1, 1.0}}));
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const std::vector<float> logits = {1, 3, 3, -kInf, 2};
  Case c;
  c.params = {.temperature = 0.1f, .top_k = 1, .logit_bias = {{0, 50.0f}}, .num_logprobs = 10};
  const RowResult result = Sample(logits, c);
  double sum = 0;
  for (float x : logits) sum += std::exp(double{x});
  EXPECT_EQ(result.token, 0);
  EXPECT_NEAR(result.logprob, 1 - std::log(sum), 1e-6);
  ASSERT_EQ(result.top.size(), 4u);  // the impossible one is not told
  const int32_t expected[] = {1, 2, 4, 0};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(result.top[i].token, expected[i]);
    EXPECT_NEAR(result.top[i].logprob, logits[expected[i]] - std::log(sum), 1e-6);
  }
  c.params.num_logprobs = 0;
  EXPECT_TRUE(Sample(logits, c).top.empty());
  EXPECT_NEAR(Sample(logits, c).logprob, 1 - std::log(sum), 1e-6);
}

TEST(Sampler, WeightsAreExponentialsToTheLastBits) {
  const std::vector<float> logits = RandomLogits(997, 21, 60);
  double total = 0;
  for (float x : logits) total += std::exp(double{x} / double{0.7f});
  for (auto [token, p] : Distribution(logits, {.params = {.temperature = 0.7f}})) {
    // Both sides round exponents of a few hundred, which costs some hundred times 2^-53.
    EXPECT_NEAR(p / (std::exp(double{logits[token]} / double{0.7f}) / total), 1, 1e-12) << logits[token];
  }
}

TEST(Sampler, TheSameSeedAndPositionGiveTheSameToken) {
  const std::vector<float> logits = RandomLogits(33, 4, 0.1f);
  Case c = {.params = {.seed = 5}};
  Sampler used;
  for (int i = 0; i < 50; ++i) {
    c.start = i;
    Sample(used, RandomLogits(2000, i), c);
    EXPECT_EQ(Sample(used, logits, c).token, Sample(logits, c).token);
  }
  std::set<int32_t> by_seed;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    c.params.seed = seed;
    by_seed.insert(Sample(logits, c).token);
  }
  EXPECT_GT(by_seed.size(), 10u);
}

// Pearson's chi-square over 40000 draws with a fixed seed; the bound is 5 standard deviations above the mean.
TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = RandomLogits(40, 8, 1);
  for (const SamplingParams& params :
       {SamplingParams{.seed = 1}, SamplingParams{.temperature = 2, .top_k = 20, .seed = 2},
        SamplingParams{.top_p = 0.8f, .seed = 3}, SamplingParams{.min_p = 0.1f, .seed = 4}}) {
    Case c = {.params = params};
    const std::map<int32_t, double> distribution = Distribution(logits, c);
    constexpr int kDraws = 40000;
    std::map<int32_t, int> counts;
    Sampler sampler;
    for (int i = 0; i < kDraws; ++i) {
      c.start = i;
      ++counts[Sample(sampler, logits, c).token];
    }
    double chi_square = 0;
    for (auto [token, p] : distribution) chi_square += std::pow(counts[token] - kDraws * p, 2) / (kDraws * p);
    for (auto [token, count] : counts) EXPECT_TRUE(distribution.contains(token)) << token;
    const double freedom = static_cast<double>(distribution.size()) - 1;
    EXPECT_GT(freedom, 5);
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom));
  }
}

}  // namespace
}  // namespace berth
