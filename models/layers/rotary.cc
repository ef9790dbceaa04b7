#include "models/layers/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numeric>

// A head's pair i of dimensions turns by the angle position * frequency[i]. The types of RoPE scaling differ in the
// frequencies only, and in a factor for cosine and sine. The formulas are those of transformers'
// modeling_rope_utils.py.
//
// Where frequencies do not change with the length, cosines and sines are in tables by position, which grow to a power
// of two (Cover). Positions past kTablePositions get rows of their own for the step. With longrope, the second half of
// the tables has the frequencies of sequences past the trained length (SelectRows). With dynamic scaling each sequence
// has frequencies of its own, so every token gets a row (FillDynamic).
namespace berth {
namespace {

constexpr int64_t kFirstPositions = 2048;
const double kPi = std::acos(-1.0);

// theta ^ (2 i / rotary_dim), theta a number or a scalar tensor: what a position is divided by.
template <typename Theta>
at::Tensor Wavelengths(const Theta& theta, int64_t rotary_dim) {
  const at::Tensor exponents =
      at::arange(0, rotary_dim, 2, at::TensorOptions().dtype(at::kFloat)) / static_cast<double>(rotary_dim);
  return at::pow(theta, exponents);
}

// _compute_llama3_parameters: long waves are slowed by `factor`, short ones kept, those between blended.
at::Tensor Llama3Frequencies(const at::Tensor& frequencies, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_positions);
  const double longest = original / rope.low_freq_factor;
  const double shortest = original / rope.high_freq_factor;
  const at::Tensor wavelengths = at::reciprocal(frequencies) * (2 * kPi);
  const at::Tensor slowed = at::where(wavelengths > longest, frequencies / rope.factor, frequencies);
  const at::Tensor smooth =
      (at::reciprocal(wavelengths) * original - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * slowed / rope.factor + smooth * slowed;
  const at::Tensor between = (wavelengths >= shortest).logical_and(wavelengths <= longest);
  return at::where(between, blended, slowed);
}

// The dimension whose wave turns `rotations` times within the trained length (YaRN, Peng et al. 2023, equation 18).
double CorrectionDimension(double rotations, int64_t rotary_dim, const RopeConfig& rope) {
  const double length = static_cast<double>(rope.original_max_positions);
  return static_cast<double>(rotary_dim) * std::log(length / (rotations * 2 * kPi)) / (2 * std::log(rope.theta));
}

// YaRN: dimensions that turn often keep their frequency, those that turn seldom are slowed, a ramp between.
at::Tensor YarnFrequencies(const RopeConfig& rope, int64_t rotary_dim) {
  double low = CorrectionDimension(rope.beta_fast, rotary_dim, rope);
  double high = CorrectionDimension(rope.beta_slow, rotary_dim, rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary_dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp =
      at::clamp((at::arange(rotary_dim / 2, at::TensorOptions().dtype(at::kFloat)) - low) / (high - low), 0, 1);
  const at::Tensor kept = 1 - ramp;
  const at::Tensor waves = Wavelengths(rope.theta, rotary_dim);
  return at::reciprocal(rope.factor * waves) * (1 - kept) + at::reciprocal(waves) * kept;
}

// _compute_dynamic_ntk_parameters: a theta that grows with the length past the trained one.
at::Tensor DynamicFrequencies(const RopeConfig& rope, int64_t rotary_dim, int64_t length) {
  const double dim = static_cast<double>(rotary_dim);
  const at::Tensor ratio =
      at::tensor(length) * rope.factor / static_cast<double>(rope.max_positions) - (rope.factor - 1);
  const at::Tensor theta = at::pow(ratio, dim / (dim - 2)) * rope.theta;  // a float32 scalar, as in the reference
  return at::reciprocal(Wavelengths(theta, rotary_dim));
}

at::Tensor LongRopeFrequencies(const RopeConfig& rope, int64_t rotary_dim, const std::vector<double>& factors) {
  const at::Tensor stretch = at::tensor(factors, at::TensorOptions().dtype(at::kDouble)).to(at::kFloat);
  return at::reciprocal(stretch * Wavelengths(rope.theta, rotary_dim));
}

at::Tensor Frequencies(const RopeConfig& rope, int64_t rotary_dim) {
  if (rope.type == "yarn") return YarnFrequencies(rope, rotary_dim);
  if (rope.type == "longrope") return LongRopeFrequencies(rope, rotary_dim, rope.short_factor);
  const at::Tensor frequencies = at::reciprocal(Wavelengths(rope.theta, rotary_dim));
  if (rope.type == "linear") return frequencies / rope.factor;
  if (rope.type == "llama3") return Llama3Frequencies(frequencies, rope);
  return frequencies;
}

double YarnScale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

double AttentionFactor(const RopeConfig& rope) {
  // Other types have no such factor, whatever the file says.
  const bool scales = rope.type == "yarn" || rope.type == "longrope";
  if (scales && rope.attention_factor != 0) return rope.attention_factor;
  if (rope.type == "yarn") {
    if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
      return YarnScale(rope.factor, rope.mscale) / YarnScale(rope.factor, rope.mscale_all_dim);
    }
    return YarnScale(rope.factor, 1);
  }
  if (rope.type == "longrope" && rope.factor > 1) {
    return std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_positions)));
  }
  return 1;
}

}  // namespace

const std::vector<absl::string_view>& RotaryTypes() {
  static const auto* const types = new std::vector<absl::string_view>{"default", "linear", "dynamic", "yarn", "llama3"};
  return *types;
}

RotaryEmbedding::RotaryEmbedding(const RopeConfig& rope, int64_t head_dim, at::Device device)
    : rope_(rope),
      head_dim_(head_dim),
      rotary_dim_(static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor)),
      device_(device),
      attention_factor_(AttentionFactor(rope)),
      frequencies_(Frequencies(rope, rotary_dim_)) {
  if (rope.type == "longrope") long_frequencies_ = LongRopeFrequencies(rope, rotary_dim_, rope.long_factor);
}

int64_t RotaryEmbedding::length_invariant_until() const {
  if (rope_.type == "dynamic") return rope_.max_positions;
  return rope_.type == "longrope" ? rope_.original_max_positions : 0;
}

ops::Rotation RotaryEmbedding::Of(const StepBatch& batch) {
  const bool in_tables = rope_.type != "dynamic" && batch.max_position() < kTablePositions;
  if (in_tables) Cover(batch.max_position());
  if (in_tables && !long_frequencies_.defined()) {
    return {.cos = tables_.cos, .sin = tables_.sin, .rows = batch.device_positions()};
  }
  const Tables& tables = SelectRows(batch, in_tables);
  if (rows_on_device_ != rows_) {
    rows_on_device_ = rows_;
    device_rows_ = batch.ToDevice(rows_on_device_);
  }
  return {.cos = tables.cos, .sin = tables.sin, .rows = device_rows_};
}

const RotaryEmbedding::Tables& RotaryEmbedding::SelectRows(const StepBatch& batch, bool in_tables) {
  if (rope_.type == "dynamic") {
    FillDynamic(batch);
    return step_;
  }
  const std::vector<int64_t>& positions = batch.decoder().positions;
  if (in_tables) {
    rows_.assign(positions.begin(), positions.end());
  } else {
    if (step_positions_ != positions) {
      step_positions_ = positions;
      step_ = TablesOf(at::tensor(positions, at::TensorOptions().dtype(at::kLong)).to(at::kFloat));
    }
    rows_.resize(positions.size());
    std::iota(rows_.begin(), rows_.end(), 0);
  }
  const Tables& tables = in_tables ? tables_ : step_;
  if (!long_frequencies_.defined()) return tables;
  for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
    if (batch.sequence_lengths()[r] <= rope_.original_max_positions) continue;
    const ops::Row& row = batch.decoder().rows[r];
    for (int64_t t = row.first_token; t < row.first_token + row.num_tokens; ++t) rows_[t] += tables.cos.size(0) / 2;
  }
  return tables;
}

void RotaryEmbedding::FillDynamic(const StepBatch& batch) {
  std::vector<at::Tensor> angles;
  for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
    const ops::Row& row = batch.decoder().rows[r];
    for (int64_t t = row.first_token; t < row.first_token + row.num_tokens; ++t) {
      const int64_t position = batch.decoder().positions[t];
      const int64_t length = std::max(batch.decoder().lengths[r], position + 1);
      const at::Tensor frequencies =
          length > rope_.max_positions ? DynamicFrequencies(rope_, rotary_dim_, length) : frequencies_;
      angles.push_back(frequencies * static_cast<double>(position));
    }
  }
  step_ = TablesOfAngles(at::stack(angles));
  rows_.resize(angles.size());
  std::iota(rows_.begin(), rows_.end(), 0);
}

void RotaryEmbedding::Cover(int64_t position) {
  if (position < covered_) return;
  if (!device_.is_cpu()) replaced_.push_back(tables_);
  covered_ = std::min(kTablePositions, std::max(kFirstPositions, PowerOfTwoFrom(position + 1)));
  tables_ = TablesOf(at::arange(covered_, frequencies_.options()));
}

RotaryEmbedding::Tables RotaryEmbedding::TablesOf(const at::Tensor& positions) const {
  const at::Tensor column = positions.unsqueeze(1);
  const at::Tensor angles = column * frequencies_;
  return TablesOfAngles(long_frequencies_.defined() ? at::cat({angles, column * long_frequencies_}) : angles);
}

RotaryEmbedding::Tables RotaryEmbedding::TablesOfAngles(const at::Tensor& angles) const {
  const auto scaled = [&](const at::Tensor& table) {
    return (attention_factor_ == 1 ? table : table * attention_factor_).to(device_);
  };
  return {.cos = scaled(at::cos(angles)), .sin = scaled(at::sin(angles))};
}

}  // namespace berth
