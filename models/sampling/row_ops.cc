#include "models/sampling/row_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/sampling/exp.h"

// Sanitizers instrument the resolvers of cloned functions, which run before the sanitizer does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define BERTH_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BERTH_CLONES
#endif

namespace berth::row_ops {
namespace {

constexpr int64_t kDoubleLanes = 8;

[[gnu::always_inline]] inline double AddLanes(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// The bits of elements i, i + 1, ... from the lowest on, as many as lie in the same word of the mask.
[[gnu::always_inline]] inline uint32_t BitsFrom(const uint32_t* mask, int64_t i) { return mask[i / 32] >> (i % 32); }

// Element i + j, or -inf. `bits`: BitsFrom(mask, i).
template <bool kMasked>
[[gnu::always_inline]] inline float At(const float* x, int64_t i, int64_t j, uint32_t bits) {
  if constexpr (!kMasked) return x[i + j];
  return (bits & (uint32_t{1} << j)) != 0 ? x[i + j] : -std::numeric_limits<float>::infinity();
}

template <bool kMasked>
[[gnu::always_inline]] inline bool LaneMaximaOf(const float* x, const uint32_t* mask, int64_t n, float* lane_max) {
  constexpr float kMax = std::numeric_limits<float>::max();
  int32_t bad[kLanes] = {};
  for (int64_t begin = 0; begin < n; begin += kChunk, lane_max += kLanes) {
    const int64_t end = std::min(n, begin + kChunk);
    float lanes[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = -std::numeric_limits<float>::infinity();
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const uint32_t bits = kMasked ? BitsFrom(mask, i) : 0;
      for (int64_t j = 0; j < kLanes; ++j) {
        const float v = At<kMasked>(x, i, j, bits);
        lanes[j] = v > lanes[j] ? v : lanes[j];
        bad[j] |= x[i + j] <= kMax ? 0 : 1;
      }
    }
    const uint32_t bits = kMasked && i < end ? BitsFrom(mask, i) : 0;
    for (int64_t j = 0; i + j < end; ++j) {
      const float v = At<kMasked>(x, i, j, bits);
      lanes[j] = v > lanes[j] ? v : lanes[j];
      bad[j] |= x[i + j] <= kMax ? 0 : 1;
    }
    for (int64_t j = 0; j < kLanes; ++j) lane_max[j] = lanes[j];
  }
  int32_t any_bad = 0;
  for (int64_t j = 0; j < kLanes; ++j) any_bad |= bad[j];
  return any_bad == 0;
}

template <bool kMasked, bool kStored>
[[gnu::always_inline]] inline double ExpWeightsOf(const float* x, const uint32_t* mask, int64_t n, float max,
                                                  double inverse_temperature, double* weights) {
  const double top = max;
  double lanes[kDoubleLanes] = {};
  int64_t i = 0;
  for (; i + kDoubleLanes <= n; i += kDoubleLanes) {
    const uint64_t bits = kMasked ? BitsFrom(mask, i) & ((1 << kDoubleLanes) - 1) : 0;
    if (kMasked && bits == 0) {
      for (int64_t j = 0; kStored && j < kDoubleLanes; ++j) weights[i + j] = 0;
      continue;
    }
    for (int64_t j = 0; j < kDoubleLanes; ++j) {
      // A logit that the mask does not allow may be above `max`.
      const double power = (x[i + j] - top) * inverse_temperature;
      double w = ExpNonPositive(kMasked ? std::min(power, 0.0) : power);
      // Chosen among numbers of equal width: compilers make vectors of that.
      if constexpr (kMasked) w = (bits & (uint64_t{1} << j)) != 0 ? w : 0.0;
      if constexpr (kStored) weights[i + j] = w;
      lanes[j] += w;
    }
  }
  const uint32_t bits = kMasked && i < n ? BitsFrom(mask, i) : 0;
  for (int64_t j = 0; i + j < n; ++j) {
    const double w = ExpNonPositive((At<kMasked>(x, i, j, bits) - top) * inverse_temperature);
    if constexpr (kStored) weights[i + j] = w;
    lanes[j] += w;
  }
  return AddLanes(lanes);
}

template <bool kMasked>
[[gnu::always_inline]] inline void BucketsOf(const float* x, const uint32_t* mask, int64_t n, float max, float scale,
                                             int32_t last_bucket, int32_t* buckets) {
  const float limit = static_cast<float>(last_bucket);
  const auto bucket = [=](float v) {
    const float at = (max - v) * scale;
    return static_cast<int32_t>(at < limit ? at : limit);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const uint32_t bits = kMasked ? BitsFrom(mask, i) : 0;
    for (int64_t j = 0; j < kLanes; ++j) buckets[i + j] = bucket(At<kMasked>(x, i, j, bits));
  }
  const uint32_t bits = kMasked && i < n ? BitsFrom(mask, i) : 0;
  for (int64_t j = 0; i + j < n; ++j) buckets[i + j] = bucket(At<kMasked>(x, i, j, bits));
}

}  // namespace

BERTH_CLONES
bool LaneMaxima(const float* x, const uint32_t* mask, int64_t n, float* lane_max) {
  return mask == nullptr ? LaneMaximaOf<false>(x, mask, n, lane_max) : LaneMaximaOf<true>(x, mask, n, lane_max);
}

BERTH_CLONES
int64_t FirstEqual(const float* x, const uint32_t* mask, int64_t n, float value) {
  int64_t i = 0;
  while (true) {
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      int32_t found = 0;
      for (int64_t j = 0; j < 4 * kLanes; ++j) found |= x[i + j] == value ? 1 : 0;
      if (found != 0) break;
    }
    while (i < n && x[i] != value) ++i;
    if (mask == nullptr || i >= n || (BitsFrom(mask, i) & 1) != 0) return i;
    ++i;
  }
}

BERTH_CLONES
bool AnyAtLeast(const float* x, int64_t n, float bound) {
  int32_t found = 0;
  for (int64_t i = 0; i < n; ++i) found |= x[i] >= bound ? 1 : 0;
  return found != 0;
}

BERTH_CLONES
double ExpWeights(const float* x, const uint32_t* mask, int64_t n, float max, double inverse_temperature,
                  double* weights) {
  return mask == nullptr ? ExpWeightsOf<false, true>(x, mask, n, max, inverse_temperature, weights)
                         : ExpWeightsOf<true, true>(x, mask, n, max, inverse_temperature, weights);
}

BERTH_CLONES
double ExpSum(const float* x, const uint32_t* mask, int64_t n, float max) {
  return mask == nullptr ? ExpWeightsOf<false, false>(x, mask, n, max, 1.0, nullptr)
                         : ExpWeightsOf<true, false>(x, mask, n, max, 1.0, nullptr);
}

BERTH_CLONES
void Buckets(const float* x, const uint32_t* mask, int64_t n, float max, float scale, int32_t last_bucket,
             int32_t* buckets) {
  if (mask == nullptr) return BucketsOf<false>(x, mask, n, max, scale, last_bucket, buckets);
  BucketsOf<true>(x, mask, n, max, scale, last_bucket, buckets);
}

BERTH_CLONES
void ClearBelow(const float* x, int64_t n, int64_t cut, double* weights) {
  const float bound = x[cut];
  for (int64_t i = 0; i <= cut; ++i) weights[i] = x[i] >= bound ? weights[i] : 0.0;
  for (int64_t i = cut + 1; i < n; ++i) weights[i] = x[i] > bound ? weights[i] : 0.0;
}

BERTH_CLONES
void ClearLighterThan(double bound, int64_t n, double* weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = weights[i] >= bound ? weights[i] : 0.0;
}

BERTH_CLONES
double Sum(const double* weights, int64_t n) {
  double lanes[kDoubleLanes] = {};
  int64_t i = 0;
  for (; i + kDoubleLanes <= n; i += kDoubleLanes) {
    for (int64_t j = 0; j < kDoubleLanes; ++j) lanes[j] += weights[i + j];
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] += weights[i];
  return AddLanes(lanes);
}

}  // namespace berth::row_ops
