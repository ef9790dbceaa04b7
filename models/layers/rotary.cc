#include "models/layers/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "models/kernels/ops.h"

namespace berth {
namespace {

constexpr int64_t kFirstPositions = 2048;

// _compute_llama3_parameters: long waves are slowed by `factor`, short ones kept, those between blended.
at::Tensor Llama3Frequencies(const at::Tensor& frequencies, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_positions);
  const double longest = original / rope.low_freq_factor;
  const double shortest = original / rope.high_freq_factor;
  const at::Tensor wavelengths = at::reciprocal(frequencies) * (2 * std::acos(-1.0));
  const at::Tensor slowed = at::where(wavelengths > longest, frequencies / rope.factor, frequencies);
  const at::Tensor smooth =
      (at::reciprocal(wavelengths) * original - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * slowed / rope.factor + smooth * slowed;
  const at::Tensor between = (wavelengths >= shortest).logical_and(wavelengths <= longest);
  return at::where(between, blended, slowed);
}

at::Tensor Frequencies(const RopeConfig& rope, int64_t head_dim) {
  const int64_t rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
  const at::Tensor exponents =
      at::arange(0, rotary_dim, 2, at::TensorOptions().dtype(at::kFloat)) / static_cast<double>(rotary_dim);
  const at::Tensor frequencies = at::reciprocal(at::pow(rope.theta, exponents));
  if (rope.type == "linear") return frequencies / rope.factor;
  if (rope.type == "llama3") return Llama3Frequencies(frequencies, rope);
  return frequencies;
}

}  // namespace

const std::vector<absl::string_view>& RotaryTypes() {
  static const auto* const types = new std::vector<absl::string_view>{"default", "linear", "llama3"};
  return *types;
}

RotaryEmbedding::RotaryEmbedding(const RopeConfig& rope, int64_t head_dim, at::Device device)
    : head_dim_(head_dim), device_(device), frequencies_(Frequencies(rope, head_dim)) {}

void RotaryEmbedding::Apply(at::Tensor& x, const StepBatch& batch) {
  Cover(batch.max_position());
  ops::Rotary(x, cos_, sin_, head_dim_, batch);
}

void RotaryEmbedding::Cover(int64_t position) {
  const int64_t covered = cos_.defined() ? cos_.size(0) : 0;
  if (position < covered) return;
  const int64_t positions = std::max({kFirstPositions, 2 * covered, position + 1});
  const at::Tensor angles = at::arange(positions, frequencies_.options()).unsqueeze(1) * frequencies_;
  cos_ = at::cos(angles).to(device_);
  sin_ = at::sin(angles).to(device_);
}

}  // namespace berth
