// The passes over a whole row of logits that sampling is made of, compiled for each level of x86-64 and chosen when the
// program starts. No fused multiply-add, and a fixed order of summation: the same bits on every level. Pure functions;
// thread-safe. Torch-free.
//
// mask: one bit for each element (models/token_constraint.h); null: all are set. An element whose bit is not set counts
// as -inf, so the results have the bits of those on logits that were changed that way.
#ifndef BERTH_MODELS_SAMPLING_ROW_OPS_H_
#define BERTH_MODELS_SAMPLING_ROW_OPS_H_

#include <cstdint>

namespace berth::row_ops {

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kChunk = 1024;  // a lane maximum is over kChunk / kLanes elements

inline int64_t NumChunks(int64_t n) { return (n + kChunk - 1) / kChunk; }

// lane_max: [NumChunks(n) * kLanes], the maxima of a partition of x: element i belongs to lane i % kLanes of chunk
// i / kChunk; -inf for an empty lane. Returns whether no element, masked ones included, is NaN or +inf (else the maxima
// mean nothing).
bool LaneMaxima(const float* x, const uint32_t* mask, int64_t n, float* lane_max);

// The first i with x[i] == value and its bit set. REQUIRES: there is one.
int64_t FirstEqual(const float* x, const uint32_t* mask, int64_t n, float value);

// Whether any of x is >= bound.
bool AnyAtLeast(const float* x, int64_t n, float bound);

// weights[i] = exp((x[i] - max) * inverse_temperature), to 2 ulp, 0 where that is below 1e-307; returns their sum.
// REQUIRES: x[i] <= max where the bit is set, max finite, inverse_temperature > 0 and finite.
double ExpWeights(const float* x, const uint32_t* mask, int64_t n, float max, double inverse_temperature,
                  double* weights);
// Returns only the sum.
double ExpSum(const float* x, const uint32_t* mask, int64_t n, float max);

// buckets[i] = min(last_bucket, int((max - x[i]) * scale)): not decreasing as x[i] falls.
void Buckets(const float* x, const uint32_t* mask, int64_t n, float max, float scale, int32_t last_bucket,
             int32_t* buckets);

// Clears the weights of elements that are less likely than the one at `cut`: x[i] < x[cut], or equal and i > cut.
void ClearBelow(const float* x, int64_t n, int64_t cut, double* weights);
void ClearLighterThan(double bound, int64_t n, double* weights);

double Sum(const double* weights, int64_t n);

}  // namespace berth::row_ops

#endif  // BERTH_MODELS_SAMPLING_ROW_OPS_H_
