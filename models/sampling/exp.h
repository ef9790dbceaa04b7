// The exponential of sampling, on the CPU and on CUDA: the same bits on both, compiled without fused multiply-add.
#ifndef BERTH_MODELS_SAMPLING_EXP_H_
#define BERTH_MODELS_SAMPLING_EXP_H_

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define BERTH_EXP_FUNCTION __device__ inline
#else
#define BERTH_EXP_FUNCTION [[gnu::always_inline]] inline
#endif

namespace berth {

// exp(y) for y <= 0: 2^k * exp(r), |r| <= ln(2)/2, the latter by its Taylor series to r^13 (error below 2e-17). 0 below
// -708. Branch-free, so that loops over it become vector code.
BERTH_EXP_FUNCTION double ExpNonPositive(double y) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double z = y > -708.0 ? y : -708.0;
  const double shifted = z * 1.4426950408889634 + kRound;
  const double k = shifted - kRound;
  const double r = (z - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
  const double r2 = r * r;
  const double r4 = r2 * r2;
  const double r8 = r4 * r4;
  const double low = (1 + r) + r2 * (1.0 / 2 + r * (1.0 / 6));
  const double mid = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
  const double high = (1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800 + r * (1.0 / 39916800)) +
                      r4 * (1.0 / 479001600 + r * (1.0 / 6227020800));
  const double exp_r = low + r4 * mid + r8 * high;
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof(power));
  return y > -708.0 ? exp_r * power : 0.0;
}

}  // namespace berth

#undef BERTH_EXP_FUNCTION

#endif  // BERTH_MODELS_SAMPLING_EXP_H_
