#include "models/layers/positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace berth {
namespace {

constexpr int64_t kFirstRows = 1024;

at::Tensor Select(const at::Tensor& table, const std::vector<int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::TensorOptions().dtype(at::kLong));
  return at::index_select(table, 0, index.to(table.device()));
}

std::vector<int64_t> Plus(std::vector<int64_t> positions, int64_t offset) {
  for (int64_t& position : positions) position += offset;
  return positions;
}

}  // namespace

LearnedPositions::LearnedPositions(at::Tensor encoder, at::Tensor decoder, int64_t offset)
    : encoder_(std::move(encoder)), decoder_(std::move(decoder)), offset_(offset) {}

at::Tensor LearnedPositions::Encoder(const StepBatch& batch) {
  return Select(encoder_, Plus(batch.encoder().positions, offset_));
}

at::Tensor LearnedPositions::Decoder(const StepBatch& batch) {
  return Select(decoder_, Plus(batch.decoder().positions, offset_));
}

SinusoidalPositions::SinusoidalPositions(int64_t hidden, int64_t padding, at::ScalarType type, at::Device device)
    : hidden_(hidden), padding_(padding), type_(type), device_(device) {}

at::Tensor SinusoidalPositions::Encoder(const StepBatch& batch) {
  const RaggedRows& encoder = batch.encoder();
  rows_.clear();
  for (const ops::Row& row : encoder.rows) {
    int64_t count = 0;
    for (int64_t i = 0; i < row.num_tokens; ++i) {
      const bool pads = encoder.token_ids[row.first_token + i] == padding_;
      rows_.push_back(pads ? padding_ : padding_ + ++count);
    }
  }
  return Rows(rows_);
}

at::Tensor SinusoidalPositions::Decoder(const StepBatch& batch) {
  rows_.clear();
  for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
    const ops::Row& row = batch.decoder().rows[r];
    const absl::Span<const int32_t> history = batch.histories()[r];
    const int64_t prompt = batch.decoder().lengths[r];
    int64_t count = 0;  // of the prompt's tokens before this step's
    for (int64_t i = 0; i < std::min(row.start, prompt); ++i) count += history[i] != padding_ ? 1 : 0;
    for (int64_t i = row.start; i < row.start + row.num_tokens; ++i) {
      const bool pads = batch.decoder().token_ids[row.first_token + i - row.start] == padding_;
      if (i < prompt && !pads) ++count;
      rows_.push_back(pads ? padding_ : padding_ + (i < prompt ? count : i + 1));
    }
  }
  return Rows(rows_);
}

at::Tensor SinusoidalPositions::Rows(const std::vector<int64_t>& rows) {
  Cover(*std::max_element(rows.begin(), rows.end()));
  return Select(table_, rows);
}

void SinusoidalPositions::Cover(int64_t row) {
  const int64_t covered = table_.defined() ? table_.size(0) : 0;
  if (row < covered) return;
  const int64_t count = std::max({kFirstRows, 2 * covered, row + 1});
  const int64_t half = hidden_ / 2;
  const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  const at::Tensor angles = at::arange(count, floats).unsqueeze(1) * at::exp(at::arange(half, floats) * -step);
  std::vector<at::Tensor> parts = {at::sin(angles), at::cos(angles)};
  if (hidden_ % 2 == 1) parts.push_back(at::zeros({count, 1}, floats));
  at::Tensor table = at::cat(parts, 1);
  if (padding_ < count) table.select(0, padding_).zero_();
  table_ = table.to(type_).to(device_);
}

}  // namespace berth
