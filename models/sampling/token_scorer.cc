#include "models/sampling/token_scorer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "models/step/thread_pool.h"

namespace berth {
namespace {

// Logits of one task; see kLogitsPerTask in sample_step.cc. A score takes two passes.
constexpr int64_t kLogitsPerTask = 8192;
constexpr float kNoScore = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TokenScorer::TokenScorer(Execution* execution) : execution_(execution), samplers_(execution->num_threads()) {}

void TokenScorer::Begin(const StepPlan& plan, StepResult* result) {
  places_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    std::vector<TokenLogprob>& scores = result->rows[i].scores;
    scores.resize(row.scored.size() * static_cast<size_t>(row.num_scores));
    for (size_t s = 0; s < row.scored.size(); ++s) {
      places_.push_back({.token = row.scored[s],
                         .scores = scores.data() + static_cast<int64_t>(s) * row.num_scores,
                         .num_scores = row.num_scores});
    }
  }
}

void TokenScorer::Take(const at::Tensor& logits, int64_t first) {
  const absl::Span<const Place> places = absl::MakeConstSpan(places_).subspan(first, logits.size(0));
  if (!logits.is_cpu()) return TakeFromDevice(logits, places);
  const at::Tensor dense = logits.to(at::kFloat).contiguous();
  const float* const data = dense.const_data_ptr<float>();
  const int64_t vocab = dense.size(1);
  const int64_t grain = std::max<int64_t>(1, kLogitsPerTask / vocab);
  ShareItems(execution_->threads, dense.size(0), grain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const Place& place = places[i];
      samplers_[thread].Score({data + i * vocab, static_cast<size_t>(vocab)}, place.token,
                              {place.scores, static_cast<size_t>(place.num_scores)});
    }
  });
}

void TokenScorer::TakeFromDevice(const at::Tensor& logits, absl::Span<const Place> places) const {
  int64_t most = 1;
  for (const Place& place : places) most = std::max(most, place.num_scores);
  const at::Tensor logprobs = at::log_softmax(logits.to(at::kFloat), 1);
  std::vector<int64_t> tokens;
  for (const Place& place : places) tokens.push_back(place.token);
  const at::Tensor index = at::tensor(tokens, at::kLong).to(logits.device()).unsqueeze(1);
  const int64_t count = std::min(most - 1, logprobs.size(1));
  const auto [top, ids] = at::topk(logprobs, count, 1);
  // In one copy, as each waits for the device. Ids are exact in float32: vocabularies are below 2^24.
  const at::Tensor all = at::cat({logprobs.gather(1, index), top, ids.to(at::kFloat)}, 1).cpu();
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const float* const own = all.const_data_ptr<float>() + static_cast<int64_t>(i) * all.size(1);
    place.scores[0] = {.token = place.token, .logprob = *own};
    std::fill_n(place.scores + 1, place.num_scores - 1, TokenLogprob{place.token, kNoScore});
    TokenLogprob* end = place.scores + 1;
    for (int64_t at = 1; at <= std::min(place.num_scores - 1, count); ++at) {
      const TokenLogprob score = {.token = static_cast<int32_t>(own[at + count]), .logprob = own[at]};
      if (!(score.logprob > -std::numeric_limits<float>::infinity())) break;  // impossible, as are all that follow
      *end++ = score;
    }
    // topk gives equal ones in any order.
    std::sort(place.scores + 1, end, [](const TokenLogprob& a, const TokenLogprob& b) {
      return std::pair(-a.logprob, a.token) < std::pair(-b.logprob, b.token);
    });
  }
}

}  // namespace berth
