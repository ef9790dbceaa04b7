#include "models/sampling/token_scorer.h"

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
  const at::Tensor own = logprobs.gather(1, index).cpu();
  const int64_t count = std::min(most - 1, logprobs.size(1));
  const auto [top, ids] = at::topk(logprobs, count, 1);
  const at::Tensor host_top = top.cpu().contiguous();
  const at::Tensor host_ids = ids.cpu().contiguous();
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const int64_t row = static_cast<int64_t>(i);
    place.scores[0] = {.token = place.token, .logprob = own.const_data_ptr<float>()[row]};
    std::fill_n(place.scores + 1, place.num_scores - 1, TokenLogprob{place.token, kNoScore});
    TokenLogprob* end = place.scores + 1;
    for (int64_t at = row * count; at < row * count + std::min(place.num_scores - 1, count); ++at) {
      const TokenLogprob score = {.token = static_cast<int32_t>(host_ids.const_data_ptr<int64_t>()[at]),
                                  .logprob = host_top.const_data_ptr<float>()[at]};
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
