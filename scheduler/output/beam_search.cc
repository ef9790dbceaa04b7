#include "scheduler/output/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace berth {
namespace {

// What transformers writes where a candidate may not be.
constexpr float kOut = -1.0e9f;

// Indices 0 .. scores.size(), by falling score, equal ones in order.
template <typename Score>
void OrderByScore(size_t count, Score score, std::vector<int>* order) {
  order->resize(count);
  std::iota(order->begin(), order->end(), 0);
  std::stable_sort(order->begin(), order->end(), [&](int a, int b) { return score(a) > score(b); });
}

int64_t NumKept(const BeamParams& params, size_t num_stop_tokens) {
  return std::max<int64_t>(2, 1 + static_cast<int64_t>(num_stop_tokens)) * params.num_beams;
}

}  // namespace

int64_t BeamSearch::NumCandidates(const Request& request) {
  const int64_t banned = request.min_tokens > 0 ? static_cast<int64_t>(request.stop_token_ids.size()) : 0;
  return NumKept(request.beams, request.stop_token_ids.size()) + banned;
}

BeamSearch::BeamSearch(const Request& request)
    : params_(request.beams), max_tokens_(request.max_tokens), stop_token_ids_(request.stop_token_ids) {
  for (std::vector<Beam>* beams : {&running_, &ended_, &next_}) {
    beams->resize(params_.num_beams);
    for (Beam& beam : *beams) {
      beam.tokens.reserve(max_tokens_);
      beam.logprobs.reserve(max_tokens_);
      beam.score = kOut;
    }
  }
  running_[0].score = 0;
}

float BeamSearch::Normalized(float sum, int64_t length) const {
  return sum / static_cast<float>(std::pow(static_cast<double>(length), params_.length_penalty));
}

void BeamSearch::Step(absl::Span<const Row> rows) {
  CollectCandidates(rows);
  ++length_;
  over_ = candidates_.empty();
  if (over_) return;
  UpdateEnded();
  UpdateRunning();
  const auto ended = [](const Beam& beam) { return beam.ended; };
  const bool all_ended = std::all_of(ended_.begin(), ended_.end(), ended);
  const bool none_goes_on =
      std::all_of(candidates_.begin(), candidates_.end(), [](const Candidate& c) { return c.ends; });
  over_ = none_goes_on || (all_ended && (params_.early_stopping == EarlyStopping::kAtOnce || !CanImprove()));
}

void BeamSearch::CollectCandidates(absl::Span<const Row> rows) {
  candidates_.clear();
  const bool last = length_ + 1 == max_tokens_;
  for (size_t b = 0; b < rows.size(); ++b) {
    const auto add = [&](int32_t token, float logprob) {
      const bool ends = last || std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), token);
      candidates_.push_back({static_cast<int>(b), token, logprob, running_[b].score + logprob, ends});
    };
    for (int32_t token : rows[b].forced) add(token, 0);
    if (!rows[b].forced.empty()) continue;
    for (const TokenLogprob& likely : rows[b].top) {
      const bool banned = std::binary_search(rows[b].banned.begin(), rows[b].banned.end(), likely.token);
      if (!banned) add(likely.token, likely.logprob);
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  const size_t kept = static_cast<size_t>(NumKept(params_, stop_token_ids_.size()));
  if (candidates_.size() > kept) candidates_.resize(kept);
  // Forced tokens and a model that rules tokens out may leave fewer than there are beams.
  while (!candidates_.empty() && static_cast<int64_t>(candidates_.size()) < params_.num_beams) {
    candidates_.push_back(candidates_.back());
    candidates_.back().score = -std::numeric_limits<float>::infinity();
  }
}

void BeamSearch::Extend(const Candidate& candidate, Beam* beam) const {
  const Beam& parent = running_[candidate.beam];
  beam->tokens.assign(parent.tokens.begin(), parent.tokens.end());
  beam->tokens.push_back(candidate.token);
  beam->logprobs.assign(parent.logprobs.begin(), parent.logprobs.end());
  beam->logprobs.push_back(candidate.logprob);
  beam->parent = candidate.beam;
}

void BeamSearch::UpdateEnded() {
  const int num_beams = static_cast<int>(params_.num_beams);
  const auto counts = [&](int i) { return i < num_beams && candidates_[i].ends; };
  const auto score = [&](int i) {
    if (i < num_beams) return ended_[i].score;
    const float normalized = Normalized(candidates_[i - num_beams].score, length_);
    return counts(i - num_beams) ? normalized : normalized + kOut;
  };
  OrderByScore(num_beams + candidates_.size(), score, &order_);
  for (int b = 0; b < num_beams; ++b) {
    const int i = order_[b];
    if (i < num_beams) {
      std::swap(next_[b], ended_[i]);
    } else {
      const float normalized = score(i);
      Extend(candidates_[i - num_beams], &next_[b]);
      next_[b].score = normalized;
      next_[b].ended = counts(i - num_beams);
    }
  }
  std::swap(next_, ended_);
}

void BeamSearch::UpdateRunning() {
  const auto score = [&](int i) { return candidates_[i].ends ? candidates_[i].score + kOut : candidates_[i].score; };
  OrderByScore(candidates_.size(), score, &order_);
  for (size_t b = 0; b < running_.size(); ++b) {
    Extend(candidates_[order_[b]], &next_[b]);
    next_[b].score = score(order_[b]);
    next_[b].ended = false;
  }
  std::swap(next_, running_);
}

bool BeamSearch::CanImprove() const {
  const bool to_the_end = params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0;
  return Normalized(running_[0].score, to_the_end ? max_tokens_ : length_) > ended_.back().score;
}

}  // namespace berth
