#include "models/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "models/sampling/philox.h"
#include "models/sampling/row_ops.h"

namespace berth {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr int64_t kSortedNucleus = 256;  // up to this many candidates are simply sorted
// Buckets of 1/128 of a nat, down to e^-32. Candidates below weigh too little to hold the end of a nucleus, since the
// largest top_p below 1 is 1 - 2^-24.
constexpr int32_t kNumBuckets = 4096;
constexpr double kBucketsPerNat = 128;
constexpr int64_t kSumBlock = 512;

// Room for at least n elements, whose values are left over. Never shrinks: growing again would clear them again.
template <typename T>
T* Room(std::vector<T>& v, int64_t n) {
  if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
  return v.data();
}

int64_t NumLanes(int64_t n) { return row_ops::NumChunks(n) * row_ops::kLanes; }

bool InVocabulary(int32_t token, int64_t vocab) { return token >= 0 && token < vocab; }

absl::Span<const int32_t> Output(const StepRow& row) {
  return row.history.subspan(
      static_cast<size_t>(std::clamp<int64_t>(row.prompt_length, 0, static_cast<int64_t>(row.history.size()))));
}

}  // namespace

bool ChangesLogits(const StepRow& row) {
  const SamplingParams& p = *row.sampling;
  return !p.logit_bias.empty() || !row.banned.empty() || !row.forced.empty() || p.repetition_penalty != 1.0f ||
         p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

const uint32_t* MaskOf(const StepRow& row, int64_t draft) {
  if (row.masks == nullptr) return nullptr;
  const int64_t place = draft == kAfterDrafts ? row.num_drafts() : draft;
  return row.masks->Wait() + place * row.masks->num_words();
}

void Sampler::SampleRow(absl::Span<const float> logits, const StepRow& row, RowResult* result, int64_t draft) {
  const SamplingParams& params = *row.sampling;
  const Logits model = {.x = logits.data(), .mask = nullptr, .n = static_cast<int64_t>(logits.size())};
  Logits x = {.x = model.x, .mask = MaskOf(row, draft), .n = model.n};
  const bool wants_logprobs = params.num_logprobs >= 0;
  const bool changes = ChangesLogits(row);
  result->logprob = 0;
  result->top.clear();
  const auto fails = [result](int32_t why) {
    if (why == kGood) return false;
    result->token = why;
    result->top.clear();
    return true;
  };

  float max = 0;
  double log_sum = 0;
  // A scan with the mask looks at what the mask hides too, so it can stand for this one.
  if (wants_logprobs || changes || x.mask == nullptr) {
    if (fails(Scan(model, &max))) return;
    if (wants_logprobs) log_sum = FillLogprobs(model, x.mask, row, max, result);
  }
  if (changes) x.x = Edit(logits, row);
  if ((changes || x.mask != nullptr) && fails(Scan(x, &max))) return;
  if (params.temperature == 0.0f) {
    result->token = static_cast<int32_t>(row_ops::FirstEqual(x.x, x.mask, x.n, max));
  } else {
    result->token = Draw(x, max, params, UniformAt(params.seed, SampledPosition(row)));
  }
  if (wants_logprobs) result->logprob = static_cast<float>(logits[result->token] - log_sum);
}

void Sampler::Score(absl::Span<const float> logits, int32_t token, absl::Span<TokenLogprob> scores) {
  const Logits model = {.x = logits.data(), .mask = nullptr, .n = static_cast<int64_t>(logits.size())};
  scores[0] = {.token = token, .logprob = std::numeric_limits<float>::quiet_NaN()};
  std::fill(scores.begin() + 1, scores.end(), scores[0]);
  float max = 0;
  if (Scan(model, &max) != kGood) return;
  const double log_sum = static_cast<double>(max) + std::log(row_ops::ExpSum(model.x, model.mask, model.n, max));
  scores[0].logprob = static_cast<float>(logits[token] - log_sum);
  top_.clear();
  TopLogprobs(model, static_cast<int64_t>(scores.size()) - 1, log_sum, &top_);
  std::copy(top_.begin(), top_.end(), scores.begin() + 1);
}

int32_t Sampler::Scan(const Logits& logits, float* max) {
  const int64_t lanes = NumLanes(logits.n);
  const float* lane_max = Room(lane_max_, lanes);
  if (!row_ops::LaneMaxima(logits.x, logits.mask, logits.n, lane_max_.data())) return RowResult::kBadLogits;
  *max = *std::max_element(lane_max, lane_max + lanes);
  if (*max > kNegativeInfinity) return kGood;
  const bool hidden = logits.mask != nullptr && row_ops::AnyAtLeast(logits.x, logits.n, kLowest);
  return hidden ? RowResult::kNoAllowedToken : RowResult::kBadLogits;
}

double Sampler::FillLogprobs(const Logits& model, const uint32_t* mask, const StepRow& row, float max,
                             RowResult* result) {
  const SamplingParams& params = *row.sampling;
  const bool after_mask = mask != nullptr && params.logprobs_after_mask;
  const Logits shown = {.x = model.x, .mask = after_mask || row.rank_allowed ? mask : nullptr, .n = model.n};
  const Logits summed = {.x = model.x, .mask = after_mask ? mask : nullptr, .n = model.n};
  if (shown.mask != nullptr) {
    float allowed_max = 0;
    if (Scan(shown, &allowed_max) != kGood) return 0;  // the model gives none of them a chance
    if (after_mask) max = allowed_max;
  }
  const double log_sum = static_cast<double>(max) + std::log(row_ops::ExpSum(summed.x, summed.mask, summed.n, max));
  TopLogprobs(shown, std::min<int64_t>(params.num_logprobs, shown.n), log_sum, &result->top);
  return log_sum;
}

const float* Sampler::Edit(absl::Span<const float> logits, const StepRow& row) {
  const SamplingParams& params = *row.sampling;
  const int64_t vocab = static_cast<int64_t>(logits.size());
  edited_.assign(logits.begin(), logits.end());
  for (auto [token, bias] : params.logit_bias) {
    if (InVocabulary(token, vocab)) edited_[token] += bias;
  }
  for (int32_t token : row.banned) {
    if (InVocabulary(token, vocab)) edited_[token] = kNegativeInfinity;
  }
  if (params.repetition_penalty != 1.0f) {
    seen_.resize(std::max(seen_.size(), logits.size()));
    if (++epoch_ == 0) {  // wrapped: old marks could be taken for new ones
      std::fill(seen_.begin(), seen_.end(), 0);
      epoch_ = 1;
    }
    for (int32_t token : row.history) {
      if (!InVocabulary(token, vocab) || seen_[token] == epoch_) continue;
      seen_[token] = epoch_;
      float& logit = edited_[token];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
  }
  if (params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f) {
    counts_.resize(std::max(counts_.size(), logits.size()));
    for (int32_t token : Output(row)) {
      if (InVocabulary(token, vocab)) ++counts_[token];
    }
    for (int32_t token : Output(row)) {
      if (!InVocabulary(token, vocab) || counts_[token] == 0) continue;
      edited_[token] -= params.frequency_penalty * static_cast<float>(counts_[token]);
      edited_[token] -= params.presence_penalty;
      counts_[token] = 0;
    }
  }
  if (!row.forced.empty()) {
    std::fill(edited_.begin(), edited_.end(), kNegativeInfinity);
    for (int32_t token : row.forced) {
      if (InVocabulary(token, vocab)) edited_[token] = 0;
    }
  }
  return edited_.data();
}

void Sampler::Collect(const Logits& logits, float bound) {
  const float* x = logits.x;
  const int64_t n = logits.n;
  if (logits.mask != nullptr) bound = std::max(bound, kLowest);
  candidate_ids_.clear();
  for (int64_t chunk = 0; chunk < row_ops::NumChunks(n); ++chunk) {
    if (!row_ops::AnyAtLeast(&lane_max_[chunk * row_ops::kLanes], row_ops::kLanes, bound)) continue;
    const int64_t end = std::min(n, (chunk + 1) * row_ops::kChunk);
    for (int64_t i = chunk * row_ops::kChunk; i < end; i += row_ops::kLanes) {
      const int64_t stop = std::min(end, i + row_ops::kLanes);
      if (!row_ops::AnyAtLeast(x + i, stop - i, bound)) continue;
      for (int64_t j = i; j < stop; ++j) {
        if (x[j] >= bound && logits.Allows(j)) candidate_ids_.push_back(static_cast<int32_t>(j));
      }
    }
  }
}

float Sampler::KthLargest(const Logits& logits, int64_t k) {
  const auto kth = [&](int64_t size) {
    if (size < k) return kNegativeInfinity;
    std::nth_element(selection_.begin(), selection_.begin() + (k - 1), selection_.begin() + size, std::greater<>());
    return selection_[static_cast<size_t>(k - 1)];
  };
  const int64_t lanes = NumLanes(logits.n);
  if (k > lanes / 2) {
    selection_.clear();
    if (logits.mask == nullptr) selection_.assign(logits.x, logits.x + logits.n);
    for (int64_t i = 0; logits.mask != nullptr && i < logits.n; ++i) {
      if (logits.Allows(i)) selection_.push_back(logits.x[i]);
    }
    return kth(static_cast<int64_t>(selection_.size()));
  }
  // k lanes have a maximum at least this large, so k elements are too. The k-th largest element is at least as large.
  selection_.assign(lane_max_.begin(), lane_max_.begin() + lanes);
  Collect(logits, kth(lanes));
  selection_.clear();
  for (int32_t id : candidate_ids_) selection_.push_back(logits.x[id]);
  return kth(static_cast<int64_t>(selection_.size()));
}

void Sampler::TopLogprobs(const Logits& logits, int64_t count, double log_sum, std::vector<TokenLogprob>* top) {
  if (count == 0) return;
  const float* x = logits.x;
  Collect(logits, KthLargest(logits, count));
  count = std::min(count, static_cast<int64_t>(candidate_ids_.size()));
  const auto likelier = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  std::partial_sort(candidate_ids_.begin(), candidate_ids_.begin() + count, candidate_ids_.end(), likelier);
  for (int64_t i = 0; i < count && x[candidate_ids_[i]] > kNegativeInfinity; ++i) {
    top->push_back({candidate_ids_[i], static_cast<float>(x[candidate_ids_[i]] - log_sum)});
  }
}

int32_t Sampler::Draw(Logits logits, float max, const SamplingParams& params, double uniform) {
  drew_from_candidates_ = params.top_k > 0 && params.top_k < logits.n;
  if (drew_from_candidates_) {
    Collect(logits, KthLargest(logits, params.top_k));
    const int64_t kept = static_cast<int64_t>(candidate_ids_.size());
    float* gathered = Room(candidate_logits_, kept);
    for (int64_t i = 0; i < kept; ++i) gathered[i] = logits.x[candidate_ids_[i]];
    logits = {.x = gathered, .mask = nullptr, .n = kept};
  }
  const int64_t n = logits.n;
  const double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
  const double total = row_ops::ExpWeights(logits.x, logits.mask, n, max, inverse_temperature, Room(weights_, n));
  if (params.top_p < 1.0f) {
    const int64_t cut = NucleusEnd(logits, max, inverse_temperature, static_cast<double>(params.top_p) * total);
    row_ops::ClearBelow(logits.x, n, cut, weights_.data());
  }
  if (params.min_p > 0.0f) {
    row_ops::ClearLighterThan(std::min(1.0, static_cast<double>(params.min_p)), n, weights_.data());
  }
  num_weights_ = n;
  const int64_t picked = PickByWeight(n, uniform);
  return drew_from_candidates_ ? candidate_ids_[picked] : static_cast<int32_t>(picked);
}

int64_t Sampler::NucleusEnd(const Logits& logits, float max, double inverse_temperature, double limit) {
  const float* x = logits.x;
  const int64_t n = logits.n;
  ranked_.clear();
  if (n <= kSortedNucleus) {
    for (int32_t i = 0; i < n; ++i) ranked_.push_back(i);
    return NucleusEndAmong(x, 0, limit, &ranked_);
  }
  // The weight by bucket of falling logits says in which bucket the nucleus ends; only that one is sorted.
  const float scale = static_cast<float>(std::min(inverse_temperature * kBucketsPerNat, 1e30));
  int32_t* buckets = Room(buckets_, n);
  row_ops::Buckets(x, logits.mask, n, max, scale, kNumBuckets - 1, buckets);
  bucket_mass_.assign(kNumBuckets, 0.0);
  for (int64_t i = 0; i < n; ++i) bucket_mass_[buckets[i]] += weights_[i];
  int32_t last = 0;  // the bucket that reaches the limit; should rounding leave none, the last with any weight
  double before = 0;
  double sum = 0;
  for (int32_t b = 0; b < kNumBuckets; ++b) {
    if (bucket_mass_[b] == 0) continue;
    last = b;
    before = sum;
    sum += bucket_mass_[b];
    if (sum >= limit) break;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (buckets[i] == last) ranked_.push_back(static_cast<int32_t>(i));
  }
  return NucleusEndAmong(x, before, limit, &ranked_);
}

int64_t Sampler::NucleusEndAmong(const float* x, double before, double limit, std::vector<int32_t>* indices) const {
  std::sort(indices->begin(), indices->end(), [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  int32_t last = indices->back();
  for (int32_t i : *indices) {
    if (weights_[i] == 0) continue;  // masked: a limit of 0 keeps the likeliest of the others
    before += weights_[i];
    last = i;
    if (before >= limit) break;
  }
  return last;
}

int64_t Sampler::PickByWeight(int64_t n, double uniform) {
  const int64_t num_blocks = (n + kSumBlock - 1) / kSumBlock;
  double* sums = Room(block_sums_, num_blocks);
  double total = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    sums[b] = row_ops::Sum(&weights_[b * kSumBlock], std::min(kSumBlock, n - b * kSumBlock));
    total += sums[b];
  }
  const double target = uniform * total;
  int64_t block = 0;  // the first whose sum passes the target; should rounding leave none, the last with any weight
  double before = 0;
  double sum = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    if (sums[b] == 0) continue;
    block = b;
    before = sum;
    sum += sums[b];
    if (sum > target) break;
  }
  int64_t picked = -1;
  for (int64_t i = block * kSumBlock; i < std::min(n, (block + 1) * kSumBlock); ++i) {
    if (weights_[i] == 0) continue;
    picked = i;
    before += weights_[i];
    if (before > target) break;
  }
  return picked;
}

std::vector<std::pair<int32_t, double>> Sampler::LastDistribution() const {
  double total = 0;
  for (int64_t i = 0; i < num_weights_; ++i) total += weights_[i];
  std::vector<std::pair<int32_t, double>> result;
  for (int64_t i = 0; i < num_weights_; ++i) {
    if (weights_[i] == 0) continue;
    result.emplace_back(drew_from_candidates_ ? candidate_ids_[i] : static_cast<int32_t>(i), weights_[i] / total);
  }
  return result;
}

}  // namespace berth
