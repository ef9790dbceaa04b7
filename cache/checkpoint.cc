#include "cache/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace berth {
namespace {

// The bits of a float32 without its sign have the order of its magnitude. Infinities and NaNs, from kInfinity on, come
// after all others.
constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinity = 0x7f800000;
// Groups whose largest number is below this become zeros: 1 / scale would be infinite.
constexpr float kSmallest = 1e-35f;
// Added to a number below 2^22 it leaves the nearest integer (even of two) in the low bits: a rounding that every
// instruction set has in vectors.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

uint16_t ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & kMagnitude) > kInfinity) return static_cast<uint16_t>(bits >> 16 | 0x40);  // rounding may not undo a NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FromBFloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Copies `count` elements of a group. The compiler knows the size of a whole group and turns its copy into a few moves.
template <typename Element>
void CopyElements(const void* from, int64_t count, void* to) {
  if (count == kCheckpointGroup) {
    std::memcpy(to, from, kCheckpointGroup * sizeof(Element));
  } else {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(Element));
  }
}

// `count` numbers of a state, and zeros up to a whole group: so the loops below have a fixed length, for vectors.
void LoadGroup(const std::byte* state, DType dtype, int64_t count, float* out) {
  if (count < kCheckpointGroup) std::fill_n(out, kCheckpointGroup, 0.0f);
  if (dtype == DType::kFloat32) {
    CopyElements<float>(state, count, out);
    return;
  }
  uint16_t narrow[kCheckpointGroup] = {};
  CopyElements<uint16_t>(state, count, narrow);
  for (int64_t i = 0; i < kCheckpointGroup; ++i) out[i] = FromBFloat16(narrow[i]);
}

void StoreGroup(const float* numbers, DType dtype, int64_t count, std::byte* state) {
  if (dtype == DType::kFloat32) {
    CopyElements<float>(numbers, count, state);
    return;
  }
  uint16_t narrow[kCheckpointGroup];
  for (int64_t i = 0; i < kCheckpointGroup; ++i) narrow[i] = ToBFloat16(numbers[i]);
  CopyElements<uint16_t>(narrow, count, state);
}

// Returns the scale's bits.
uint16_t QuantiseGroup(const float* numbers, int8_t* out) {
  int32_t largest = 0;
  for (int64_t i = 0; i < kCheckpointGroup; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(numbers[i]) & kMagnitude);
  }
  float inverse = 0;
  uint16_t scale = 0;
  if (largest >= kInfinity) {
    scale = 0x7fc0;  // NaN
  } else if (std::bit_cast<float>(largest) >= kSmallest) {
    scale = ToBFloat16(std::bit_cast<float>(largest) / 127);
    inverse = 1 / FromBFloat16(scale);
  }
  if (inverse == 0) {
    std::fill_n(out, kCheckpointGroup, int8_t{0});
    return scale;
  }
  for (int64_t i = 0; i < kCheckpointGroup; ++i) {
    out[i] = static_cast<int8_t>(std::bit_cast<int32_t>(numbers[i] * inverse + kRound));
  }
  return scale;
}

int64_t ValueBytes(const CheckpointTensor& tensor) { return tensor.num_elements * DTypeBytes(tensor.dtype); }

void QuantiseTensor(const CheckpointTensor& tensor, const std::byte* state, std::byte* out) {
  const int64_t bytes = DTypeBytes(tensor.dtype);
  std::byte* scales = out + tensor.scale_offset;
  for (int64_t i = 0; i < tensor.num_elements; i += kCheckpointGroup) {
    const int64_t count = std::min(kCheckpointGroup, tensor.num_elements - i);
    float numbers[kCheckpointGroup];
    int8_t values[kCheckpointGroup];
    LoadGroup(state + i * bytes, tensor.dtype, count, numbers);
    const uint16_t scale = QuantiseGroup(numbers, values);
    CopyElements<int8_t>(values, count, out + i);
    std::memcpy(scales, &scale, sizeof(scale));
    scales += sizeof(scale);
  }
  std::fill(out + tensor.num_elements, out + tensor.scale_offset, std::byte{0});
  std::fill(scales, out + tensor.size_bytes, std::byte{0});
}

void ExpandTensor(const CheckpointTensor& tensor, const std::byte* in, std::byte* state) {
  const int64_t bytes = DTypeBytes(tensor.dtype);
  const std::byte* scales = in + tensor.scale_offset;
  for (int64_t i = 0; i < tensor.num_elements; i += kCheckpointGroup) {
    const int64_t count = std::min(kCheckpointGroup, tensor.num_elements - i);
    int8_t values[kCheckpointGroup] = {};
    uint16_t bits;
    CopyElements<int8_t>(in + i, count, values);
    std::memcpy(&bits, scales, sizeof(bits));
    scales += sizeof(bits);
    const float scale = FromBFloat16(bits);
    float numbers[kCheckpointGroup];
    for (int64_t k = 0; k < kCheckpointGroup; ++k) numbers[k] = static_cast<float>(values[k]) * scale;
    StoreGroup(numbers, tensor.dtype, count, state + i * bytes);
  }
}

}  // namespace

void QuantiseStates(absl::Span<const CheckpointTensor> tensors, const std::byte* states, std::byte* checkpoint) {
  for (const CheckpointTensor& tensor : tensors) {
    const std::byte* const state = states + tensor.state_offset;
    std::byte* const out = checkpoint + tensor.offset;
    if (tensor.scale_offset > 0) {
      QuantiseTensor(tensor, state, out);
    } else {
      std::memcpy(out, state, static_cast<size_t>(ValueBytes(tensor)));
      std::fill(out + ValueBytes(tensor), out + tensor.size_bytes, std::byte{0});
    }
  }
}

void ExpandStates(absl::Span<const CheckpointTensor> tensors, const std::byte* checkpoint, std::byte* states) {
  for (const CheckpointTensor& tensor : tensors) {
    const std::byte* const in = checkpoint + tensor.offset;
    std::byte* const state = states + tensor.state_offset;
    if (tensor.scale_offset > 0) {
      ExpandTensor(tensor, in, state);
    } else {
      std::memcpy(state, in, static_cast<size_t>(ValueBytes(tensor)));
    }
  }
}

}  // namespace berth
