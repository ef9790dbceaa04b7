// Cache lines, on which packed matrices and the threads' scratch begin. No standard library: CPU kernels include it.
#ifndef BERTH_MODELS_STEP_CACHE_LINE_H_
#define BERTH_MODELS_STEP_CACHE_LINE_H_

#include <stdint.h>

namespace berth::ops {

inline constexpr int64_t kCacheLine = 64;  // bytes

inline constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_STEP_CACHE_LINE_H_
