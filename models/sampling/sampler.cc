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

void Sampler::SampleRow(absl::Span<const float> logits, const StepRow& row, RowResult* result) {
  const SamplingParams& params = *row.sampling;
  const int64_t vocab = static_cast<int64_t>(logits.size());
  result->token = RowResult::kBadLogits;
  result->logprob = 0;
  result->top.clear();

  const float* x = logits.data();
  float max = 0;
  if (!Scan(x, vocab, &max)) return;
  double log_sum = 0;  // of the model's own distribution
  if (params.num_logprobs >= 0) {
    log_sum = static_cast<double>(max) + std::log(row_ops::ExpSum(x, vocab, max));
    TopLogprobs(x, vocab, std::min<int64_t>(params.num_logprobs, vocab), log_sum, &result->top);
  }
  if (ChangesLogits(row)) {
    x = Edit(logits, row);
    if (!Scan(x, vocab, &max)) {
      result->top.clear();
      return;
    }
  }
  if (params.temperature == 0.0f) {
    result->token = static_cast<int32_t>(row_ops::FirstEqual(x, vocab, max));
  } else {
    result->token = Draw(x, vocab, max, params, UniformAt(params.seed, SampledPosition(row)));
  }
  if (params.num_logprobs >= 0) result->logprob = static_cast<float>(logits[result->token] - log_sum);
}

bool Sampler::Scan(const float* x, int64_t n, float* max) {
  const float* lane_max = Room(lane_max_, NumLanes(n));
  if (!row_ops::LaneMaxima(x, n, lane_max_.data())) return false;
  *max = *std::max_element(lane_max, lane_max + NumLanes(n));
  return *max > kNegativeInfinity;
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

void Sampler::Collect(const float* x, int64_t n, float bound) {
  candidate_ids_.clear();
  for (int64_t chunk = 0; chunk < row_ops::NumChunks(n); ++chunk) {
    if (!row_ops::AnyAtLeast(&lane_max_[chunk * row_ops::kLanes], row_ops::kLanes, bound)) continue;
    const int64_t end = std::min(n, (chunk + 1) * row_ops::kChunk);
    for (int64_t i = chunk * row_ops::kChunk; i < end; i += row_ops::kLanes) {
      const int64_t stop = std::min(end, i + row_ops::kLanes);
      if (!row_ops::AnyAtLeast(x + i, stop - i, bound)) continue;
      for (int64_t j = i; j < stop; ++j) {
        if (x[j] >= bound) candidate_ids_.push_back(static_cast<int32_t>(j));
      }
    }
  }
}

float Sampler::KthLargest(const float* x, int64_t n, int64_t k) {
  const auto kth = [&](int64_t size) {
    std::nth_element(selection_.begin(), selection_.begin() + (k - 1), selection_.begin() + size, std::greater<>());
    return selection_[static_cast<size_t>(k - 1)];
  };
  const int64_t lanes = NumLanes(n);
  if (k > lanes / 2) {
    selection_.assign(x, x + n);
    return kth(n);
  }
  // k lanes have a maximum at least this large, so k elements are too. The k-th largest element is at least as large.
  selection_.assign(lane_max_.begin(), lane_max_.begin() + lanes);
  Collect(x, n, kth(lanes));
  selection_.clear();
  for (int32_t id : candidate_ids_) selection_.push_back(x[id]);
  return kth(static_cast<int64_t>(selection_.size()));
}

void Sampler::TopLogprobs(const float* x, int64_t n, int64_t count, double log_sum, std::vector<TokenLogprob>* top) {
  if (count == 0) return;
  Collect(x, n, KthLargest(x, n, count));
  const auto likelier = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  std::partial_sort(candidate_ids_.begin(), candidate_ids_.begin() + count, candidate_ids_.end(), likelier);
  for (int64_t i = 0; i < count && x[candidate_ids_[i]] > kNegativeInfinity; ++i) {
    top->push_back({candidate_ids_[i], static_cast<float>(x[candidate_ids_[i]] - log_sum)});
  }
}

int32_t Sampler::Draw(const float* x, int64_t n, float max, const SamplingParams& params, double uniform) {
  drew_from_candidates_ = params.top_k > 0 && params.top_k < n;
  if (drew_from_candidates_) {
    Collect(x, n, KthLargest(x, n, params.top_k));
    const int64_t kept = static_cast<int64_t>(candidate_ids_.size());
    float* gathered = Room(candidate_logits_, kept);
    for (int64_t i = 0; i < kept; ++i) gathered[i] = x[candidate_ids_[i]];
    x = gathered;
    n = kept;
  }
  const double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
  const double total = row_ops::ExpWeights(x, n, max, inverse_temperature, Room(weights_, n));
  if (params.top_p < 1.0f) {
    const int64_t cut = NucleusEnd(x, n, max, inverse_temperature, static_cast<double>(params.top_p) * total);
    row_ops::ClearBelow(x, n, cut, weights_.data());
  }
  if (params.min_p > 0.0f) {
    row_ops::ClearLighterThan(std::min(1.0, static_cast<double>(params.min_p)), n, weights_.data());
  }
  num_weights_ = n;
  const int64_t picked = PickByWeight(n, uniform);
  return drew_from_candidates_ ? candidate_ids_[picked] : static_cast<int32_t>(picked);
}

int64_t Sampler::NucleusEnd(const float* x, int64_t n, float max, double inverse_temperature, double limit) {
  ranked_.clear();
  if (n <= kSortedNucleus) {
    for (int32_t i = 0; i < n; ++i) ranked_.push_back(i);
    return NucleusEndAmong(x, 0, limit, &ranked_);
  }
  // The weight by bucket of falling logits says in which bucket the nucleus ends; only that one is sorted.
  const float scale = static_cast<float>(std::min(inverse_temperature * kBucketsPerNat, 1e30));
  int32_t* buckets = Room(buckets_, n);
  row_ops::Buckets(x, n, max, scale, kNumBuckets - 1, buckets);
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
  for (int32_t i : *indices) {
    before += weights_[i];
    if (before >= limit) return i;
  }
  return indices->back();
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
