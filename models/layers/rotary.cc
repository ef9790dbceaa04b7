#include "models/layers/rotary.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "models/kernels/ops.h"

namespace berth {
namespace {

constexpr int64_t kFirstPositions = 2048;

// _compute_llama3_parameters: long waves are slowed by `factor`, short ones kept, those between blended.
float Llama3Frequency(float frequency, const RopeConfig& rope) {
  const double pi = std::acos(-1.0);
  const float wavelength = static_cast<float>(2 * pi) / frequency;
  const double original = static_cast<double>(rope.original_max_positions);
  const float longest = static_cast<float>(original / rope.low_freq_factor);
  const float shortest = static_cast<float>(original / rope.high_freq_factor);
  if (wavelength < shortest) return frequency;
  const float slowed = frequency / static_cast<float>(rope.factor);
  if (wavelength > longest) return slowed;
  const float smooth = (static_cast<float>(original) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * slowed + smooth * frequency;
}

}  // namespace

const std::vector<absl::string_view>& RotaryTypes() {
  static const auto* const types = new std::vector<absl::string_view>{"default", "linear", "llama3"};
  return *types;
}

RotaryEmbedding::RotaryEmbedding(const RopeConfig& rope, int64_t head_dim, at::Device device)
    : head_dim_(head_dim), device_(device) {
  const int64_t rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
  for (int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.type == "linear") frequency /= static_cast<float>(rope.factor);
    if (rope.type == "llama3") frequency = Llama3Frequency(frequency, rope);
    inverse_frequencies_.push_back(frequency);
  }
}

void RotaryEmbedding::Apply(at::Tensor& x, const StepBatch& batch) {
  Cover(batch.max_position());
  ops::Rotary(x, cos_, sin_, head_dim_, batch);
}

void RotaryEmbedding::Cover(int64_t position) {
  const int64_t covered = cos_.defined() ? cos_.size(0) : 0;
  if (position < covered) return;
  const int64_t positions = std::max({kFirstPositions, 2 * covered, position + 1});
  const int64_t half = static_cast<int64_t>(inverse_frequencies_.size());
  at::Tensor cos = at::empty({positions, half}, at::TensorOptions().dtype(at::kFloat));
  at::Tensor sin = at::empty({positions, half}, at::TensorOptions().dtype(at::kFloat));
  float* c = cos.mutable_data_ptr<float>();
  float* s = sin.mutable_data_ptr<float>();
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * inverse_frequencies_[i];
      c[p * half + i] = std::cos(angle);
      s[p * half + i] = std::sin(angle);
    }
  }
  cos_ = cos.to(device_);
  sin_ = sin.to(device_);
}

}  // namespace berth
