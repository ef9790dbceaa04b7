// The formats of numbers: of weights, of activations, of what is cached. No standard library: kernels include it.
#ifndef BERTH_CACHE_DTYPE_H_
#define BERTH_CACHE_DTYPE_H_

#include <stdint.h>

namespace berth {

// Activations are kFloat32 or kBFloat16, and so are the states that steps read and write, and the cross kind. Weights,
// and cached keys and values (KvTensor in cache/spec.h), are kInt8 or kInt4 if they are quantised. Checkpoints of
// states are kInt8 then (CheckpointTensor).
enum class DType : uint8_t { kFloat32, kBFloat16, kInt8, kInt4 };

inline constexpr bool IsQuantised(DType dtype) { return dtype == DType::kInt8 || dtype == DType::kInt4; }

inline constexpr int64_t kInt4Group = 32;  // dimensions of an int4 key or value that share a scale

}  // namespace berth

#endif  // BERTH_CACHE_DTYPE_H_
