// Beam search against a literal transcription of transformers' _beam_search over whole distributions, and by hand.
#include "scheduler/output/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

namespace berth {
namespace {

constexpr int kVocab = 40;
constexpr float kOut = -1.0e9f;

// A model: the distribution after any output.
class RandomModel {
 public:
  explicit RandomModel(uint32_t seed) : seed_(seed) {}
  const std::vector<float>& LogprobsAfter(const std::vector<int32_t>& tokens) {
    std::vector<float>& row = rows_[tokens];
    if (!row.empty()) return row;
    std::seed_seq mix(tokens.begin(), tokens.end());
    std::vector<uint32_t> words(1);
    mix.generate(words.begin(), words.end());
    std::mt19937 random(words[0] ^ seed_);
    std::normal_distribution<float> normal(0, 2);
    double sum = 0;
    for (int i = 0; i < kVocab; ++i) row.push_back(normal(random));
    for (float x : row) sum += std::exp(static_cast<double>(x));
    for (float& x : row) x = static_cast<float>(x - std::log(sum));
    return row;
  }
  std::vector<TokenLogprob> Top(const std::vector<int32_t>& tokens, int64_t count) {
    const std::vector<float>& row = LogprobsAfter(tokens);
    std::vector<TokenLogprob> top;
    for (int i = 0; i < kVocab; ++i) top.push_back({i, row[i]});
    std::sort(top.begin(), top.end(), [](auto& a, auto& b) { return a.logprob > b.logprob; });
    top.resize(std::min<int64_t>(count, kVocab));
    return top;
  }

 private:
  uint32_t seed_;
  std::map<std::vector<int32_t>, std::vector<float>> rows_;
};

struct Output {
  std::vector<int32_t> tokens;
  float score;
  friend bool operator==(const Output&, const Output&) = default;
};
void PrintTo(const Output& output, std::ostream* os) {
  *os << output.score << ":";
  for (int32_t token : output.tokens) *os << " " << token;
}

std::vector<int> TopK(const std::vector<float>& values, size_t k) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(k);
  return order;
}

template <typename T>
std::vector<T> Gather(const std::vector<T>& values, const std::vector<int>& indices) {
  std::vector<T> out;
  for (int i : indices) out.push_back(values[i]);
  return out;
}

// generation/utils.py of transformers 5.24, with batch_size 1, line by line, over all beams times all tokens.
std::vector<Output> Transcription(const Request& request, RandomModel* model) {
  const size_t num_beams = request.beams.num_beams;
  const double length_penalty = request.beams.length_penalty;
  const bool at_once = request.beams.early_stopping == EarlyStopping::kAtOnce;
  const size_t keep = std::max<size_t>(2, 1 + request.stop_token_ids.size()) * num_beams;
  std::vector<std::vector<int32_t>> running(num_beams), sequences(num_beams);
  std::vector<float> running_scores(num_beams, kOut), beam_scores(num_beams, kOut);
  running_scores[0] = 0;
  std::vector<bool> is_finished(num_beams, false);
  bool unsatisfied = true;
  int cur_len = 0;
  while (true) {
    std::vector<float> accumulated;
    for (size_t b = 0; b < num_beams; ++b) {
      std::vector<float> row = model->LogprobsAfter(running[b]);
      for (int32_t eos : request.stop_token_ids) {
        if (cur_len < request.min_tokens) row[eos] = -INFINITY;
      }
      for (float x : row) accumulated.push_back(x + running_scores[b]);
    }
    const std::vector<int> top = TopK(accumulated, keep);
    std::vector<float> scores = Gather(accumulated, top);
    std::vector<std::vector<int32_t>> candidates;
    std::vector<bool> hits;
    for (int i : top) {
      candidates.push_back(running[i / kVocab]);
      candidates.back().push_back(i % kVocab);
      const bool eos = std::count(request.stop_token_ids.begin(), request.stop_token_ids.end(), i % kVocab) > 0;
      hits.push_back(eos || cur_len + 1 == request.max_tokens);
    }
    std::vector<float> running_log_probs = scores;
    for (size_t i = 0; i < keep; ++i) running_log_probs[i] += hits[i] ? kOut : 0.0f;
    const std::vector<int> next = TopK(running_log_probs, num_beams);
    running = Gather(candidates, next);
    running_scores = Gather(running_log_probs, next);

    const bool full = std::count(is_finished.begin(), is_finished.end(), true) == static_cast<int64_t>(num_beams);
    for (size_t i = 0; i < keep; ++i) {
      scores[i] = scores[i] / static_cast<float>(std::pow(static_cast<double>(cur_len + 1), length_penalty));
      if (full && at_once) scores[i] += kOut;
      if (!unsatisfied) scores[i] += kOut;
      if (!(hits[i] && i < num_beams)) scores[i] += kOut;
    }
    std::vector<float> merged_scores = beam_scores;
    merged_scores.insert(merged_scores.end(), scores.begin(), scores.end());
    std::vector<std::vector<int32_t>> merged = sequences;
    merged.insert(merged.end(), candidates.begin(), candidates.end());
    std::vector<bool> merged_finished = is_finished;
    for (size_t i = 0; i < keep; ++i) merged_finished.push_back(hits[i] && i < num_beams);
    const std::vector<int> best = TopK(merged_scores, num_beams);
    sequences = Gather(merged, best);
    beam_scores = Gather(merged_scores, best);
    is_finished = Gather(merged_finished, best);

    ++cur_len;
    const bool never = request.beams.early_stopping == EarlyStopping::kNever && length_penalty > 0;
    const double length = static_cast<double>(never ? request.max_tokens : cur_len);
    const float possible = running_scores[0] / static_cast<float>(std::pow(length, length_penalty));
    const float worst = *std::min_element(beam_scores.begin(), beam_scores.end());
    bool any = false;
    bool all_finished = true;
    for (bool finished : is_finished) {
      any = any || possible > (finished ? worst : kOut);
      all_finished = all_finished && finished;
    }
    unsatisfied = unsatisfied && any;
    const bool continuations = std::count(hits.begin(), hits.end(), true) < static_cast<int64_t>(keep);
    if (!unsatisfied || (all_finished && at_once) || !continuations) break;
  }
  std::vector<Output> outputs;
  for (size_t b = 0; b < num_beams; ++b) outputs.push_back({sequences[b], beam_scores[b]});
  return outputs;
}

std::vector<Output> Search(const Request& request, RandomModel* model) {
  BeamSearch search(request);
  for (int64_t length = 0; !search.over(); ++length) {
    std::vector<std::vector<TokenLogprob>> tops;
    for (const BeamSearch::Beam& beam : search.running()) {
      tops.push_back(model->Top(beam.tokens, BeamSearch::NumCandidates(request)));
    }
    std::vector<BeamSearch::Row> rows(tops.size());
    for (size_t b = 0; b < rows.size(); ++b) {
      rows[b].top = tops[b];
      if (length < request.min_tokens) rows[b].banned = request.stop_token_ids;
    }
    search.Step(rows);
  }
  std::vector<Output> outputs;
  for (const BeamSearch::Beam& beam : search.ended()) {
    EXPECT_TRUE(beam.ended);
    EXPECT_EQ(beam.tokens.size(), beam.logprobs.size());
    outputs.push_back({beam.tokens, beam.score});
  }
  return outputs;
}

TEST(BeamSearch, DoesWhatTransformersDoes) {
  std::mt19937 random(1);
  const auto between = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  int64_t num_early = 0;
  for (uint32_t seed = 0; seed < 3000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Request request;
    request.beams = {.num_beams = between(2, 6),
                     .length_penalty = between(-4, 8) / 4.0,
                     .early_stopping = static_cast<EarlyStopping>(between(0, 2))};
    request.max_tokens = between(1, 12);
    const int stops = between(0, 6);
    while (static_cast<int>(request.stop_token_ids.size()) < stops) {
      const int32_t token = between(0, kVocab - 1);
      if (std::count(request.stop_token_ids.begin(), request.stop_token_ids.end(), token) == 0) {
        request.stop_token_ids.push_back(token);
      }
    }
    std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
    if (between(0, 2) == 0) request.min_tokens = between(0, static_cast<int>(request.max_tokens) - 1);
    RandomModel model(seed);
    const std::vector<Output> expected = Transcription(request, &model);
    EXPECT_EQ(Search(request, &model), expected);
    num_early += static_cast<int64_t>(expected[0].tokens.size()) < request.max_tokens ? 1 : 0;
  }
  EXPECT_GT(num_early, 1000) << "too few searches ended by an end token";
}

TEST(BeamSearch, AForcedTokenCostsNothing) {
  Request request;
  request.beams.num_beams = 3;
  request.max_tokens = 2;
  BeamSearch search(request);
  const std::vector<TokenLogprob> top = {{4, -0.5f}, {5, -1.0f}, {6, -2.0f}, {7, -3.0f}, {8, -4.0f}, {9, -5.0f}};
  const std::vector<int32_t> forced = {17};
  const std::vector<BeamSearch::Row> first(3, BeamSearch::Row{.top = top, .forced = forced});
  search.Step(first);
  EXPECT_EQ(search.running()[0].score, 0);
  for (const BeamSearch::Beam& beam : search.running()) EXPECT_EQ(beam.tokens, forced);
  const std::vector<BeamSearch::Row> second(3, BeamSearch::Row{.top = top});
  search.Step(second);
  EXPECT_TRUE(search.over());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(search.ended()[i].tokens, (std::vector<int32_t>{17, 4 + i}));
}

TEST(BeamSearch, FewerCandidatesThanBeamsAreNoError) {
  Request request;
  request.beams.num_beams = 4;
  request.max_tokens = 3;
  BeamSearch search(request);
  const std::vector<TokenLogprob> top = {{4, -0.5f}};
  for (int i = 0; i < 3; ++i) search.Step(std::vector<BeamSearch::Row>(4, BeamSearch::Row{.top = top}));
  EXPECT_TRUE(search.over());
  EXPECT_EQ(search.ended()[0].tokens, (std::vector<int32_t>{4, 4, 4}));
}

}  // namespace
}  // namespace berth
