#include "models/step/step_batch.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace berth {
namespace {

// The tiles of one row of `count` queries.
void AddTiles(int64_t row, int64_t count, std::vector<int64_t>* tiles) {
  for (int64_t first = 0; first < count; first += ops::kQueryTile) {
    tiles->push_back(row);
    tiles->push_back(first);
  }
}

}  // namespace

StepBatch::StepBatch(CachePlan plan, std::byte* arena, at::Device device, Execution* execution, bool copy_tables)
    : plan_(std::move(plan)),
      arena_(reinterpret_cast<char*>(arena)),
      device_(device),
      execution_(execution),
      copy_tables_(copy_tables),
      blocks_(plan_.groups.size()),
      units_(plan_.groups.size()),
      has_cross_(plan_.has_cross()) {
  encoder_.blocks.resize(plan_.groups.size());
  tables_.blocks.resize(plan_.groups.size());
  tables_.units.resize(plan_.groups.size());
  tables_.encoder.blocks.resize(plan_.groups.size());
}

void StepBatch::Clear() {
  for_graph_ = false;
  leading_rows_ = {};
  num_tokens_ = 0;
  max_position_ = 0;
  longest_row_ = 0;
  host_token_ids_.clear();
  host_sample_tokens_.clear();
  positions_.clear();
  rows_.clear();
  prompt_lengths_.clear();
  sequence_lengths_.clear();
  tiles_.clear();
  sample_rows_.clear();
  for (auto& blocks : blocks_) blocks.clear();
  for (auto& units : units_) units.clear();
}

void StepBatch::Fill(const StepPlan& step) {
  Clear();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    FillRow(step.rows[i]);
    if (!step.rows[i].sample) continue;
    for (int64_t back = step.rows[i].num_drafts(); back >= 0; --back) {
      sample_rows_.push_back(static_cast<int>(i));
      host_sample_tokens_.push_back(num_tokens_ - 1 - back);
    }
  }
  if (has_cross_) FillEncoders(step);
  if (copy_tables_) {
    CopyTables();
  } else {
    PointTables();
  }
}

void StepBatch::Fill(const StepPlan& step, const GraphShape& shape) {
  TORCH_CHECK(copy_tables_ && !has_cross_, "no CUDA graph computes this model's steps");
  Clear();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    TORCH_CHECK(step.rows[i].num_tokens() == 1 && step.rows[i].sample, "a step of a CUDA graph decodes");
    FillRow(step.rows[i]);
    sample_rows_.push_back(static_cast<int>(i));
  }
  FillUpTo(shape);
  CopyTables();
  for_graph_ = true;
}

void StepBatch::FillUpTo(const GraphShape& shape) {
  TORCH_CHECK(num_rows() <= shape.rows && max_position_ < shape.keys, "a step is larger than its CUDA graph");
  while (num_rows() < shape.rows) {
    tiles_.push_back(num_rows());
    tiles_.push_back(0);
    rows_.push_back({.first_token = num_tokens_++, .num_tokens = 0, .start = 0});
    prompt_lengths_.push_back(0);
    host_token_ids_.push_back(0);
    positions_.push_back(0);
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (plan_.groups[g].kind == CacheKind::kRecurrent) {
        units_[g].push_back(0);
      } else if (plan_.groups[g].kind != CacheKind::kCheckpoint) {
        blocks_[g].push_back({});
      }
    }
  }
  for (int64_t row = 0; row < shape.rows; ++row) host_sample_tokens_.push_back(row);
  max_position_ = shape.keys - 1;
  leading_rows_ = {.rows = shape.rows, .tokens = shape.rows, .keys = shape.keys};
}

void StepBatch::PointTables() {
  token_ids_ = ToDevice(host_token_ids_);
  device_positions_ = ToDevice(positions_);
  sample_tokens_ = ToDevice(host_sample_tokens_);
  if (has_cross_) encoder_.token_ids = ToDevice(encoder_.host_token_ids);
  EncoderTables& encoder = tables_.encoder;
  tables_.rows = rows_.data();
  tables_.tiles = tiles_.data();
  tables_.prompt_lengths = prompt_lengths_.data();
  tables_.cross_lengths = cross_lengths_.data();
  encoder.rows = encoder_.rows.data();
  encoder.lengths = encoder_.lengths.data();
  encoder.tiles = encoder_.tiles.data();
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    tables_.blocks[g] = blocks_[g].data();
    tables_.units[g] = units_[g].data();
    encoder.blocks[g] = encoder_.blocks[g].data();
  }
}

void StepBatch::CopyTables() {
  StagingBuffer& staging = staging_;
  EncoderTables& encoder = tables_.encoder;
  staging.Clear();
  const int64_t rows = staging.Add(rows_);
  const int64_t tiles = staging.Add(tiles_);
  const int64_t prompt_lengths = staging.Add(prompt_lengths_);
  const int64_t cross_lengths = staging.Add(cross_lengths_);
  const int64_t token_ids = staging.Add(host_token_ids_);
  const int64_t sample_tokens = staging.Add(host_sample_tokens_);
  const int64_t positions = staging.Add(positions_);
  const int64_t encoder_rows = staging.Add(encoder_.rows);
  const int64_t encoder_lengths = staging.Add(encoder_.lengths);
  const int64_t encoder_tiles = staging.Add(encoder_.tiles);
  const int64_t encoder_token_ids = staging.Add(encoder_.host_token_ids);
  std::vector<int64_t> blocks, units, encoder_blocks;  // by group: where they begin
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    blocks.push_back(staging.AddBlocks(blocks_[g]));
    units.push_back(staging.Add(units_[g]));
    encoder_blocks.push_back(staging.AddBlocks(encoder_.blocks[g]));
  }
  staging.Copy(device_, &copy_);
  const char* base = static_cast<const char*>(copy_.const_data_ptr());
  const auto numbers = [&](int64_t offset) { return reinterpret_cast<const int64_t*>(base + offset); };
  tables_.rows = reinterpret_cast<const ops::Row*>(base + rows);
  tables_.tiles = numbers(tiles);
  tables_.prompt_lengths = numbers(prompt_lengths);
  tables_.cross_lengths = numbers(cross_lengths);
  encoder.rows = reinterpret_cast<const ops::Row*>(base + encoder_rows);
  encoder.lengths = numbers(encoder_lengths);
  encoder.tiles = numbers(encoder_tiles);
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    tables_.blocks[g] = reinterpret_cast<const ops::Blocks*>(base + blocks[g]);
    tables_.units[g] = numbers(units[g]);
    encoder.blocks[g] = reinterpret_cast<const ops::Blocks*>(base + encoder_blocks[g]);
  }
  const auto tensor = [&](int64_t offset, size_t count) {
    return copy_.narrow(0, offset, static_cast<int64_t>(count * sizeof(int64_t))).view(at::kLong);
  };
  token_ids_ = tensor(token_ids, host_token_ids_.size());
  sample_tokens_ = tensor(sample_tokens, host_sample_tokens_.size());
  device_positions_ = tensor(positions, positions_.size());
  encoder_.token_ids = tensor(encoder_token_ids, encoder_.host_token_ids.size());
}

void StepBatch::FillRow(const StepRow& row) {
  const int64_t count = row.num_tokens();
  const int64_t index = static_cast<int64_t>(rows_.size());
  rows_.push_back({.first_token = num_tokens_, .num_tokens = count, .start = row.start});
  prompt_lengths_.push_back(row.prompt_length);
  sequence_lengths_.push_back(row.sequence_length);
  for (const absl::Span<const int32_t> tokens : {row.tokens, row.drafts}) {
    host_token_ids_.insert(host_token_ids_.end(), tokens.begin(), tokens.end());
  }
  for (int64_t i = 0; i < count; ++i) positions_.push_back(row.start + i);
  AddTiles(index, count, &tiles_);
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    if (plan_.groups[g].kind == CacheKind::kRecurrent) {
      units_[g].push_back(row.lease->state_unit(static_cast<int>(g)));
    } else if (plan_.groups[g].kind != CacheKind::kCheckpoint) {
      const BlockTable table = row.lease->blocks(static_cast<int>(g));
      blocks_[g].push_back({.offsets = table.offsets.data(),
                            .sink_blocks = table.sink_blocks,
                            .expired_blocks = table.expired_blocks,
                            .num_offsets = static_cast<int64_t>(table.offsets.size())});
    }
  }
  if (count <= ops::kQueryTile && leading_rows_.rows == index) {
    ++leading_rows_.rows;
    leading_rows_.tokens += count;
    leading_rows_.keys = std::max(leading_rows_.keys, row.start + count);
  }
  num_tokens_ += count;
  longest_row_ = std::max(longest_row_, count);
  max_position_ = std::max(max_position_, row.start + count - 1);
}

void StepBatch::FillEncoders(const StepPlan& step) {
  cross_lengths_.clear();
  histories_.clear();
  encoder_.host_token_ids.clear();
  encoder_.positions.clear();
  encoder_.rows.clear();
  encoder_.lengths.clear();
  encoder_.tiles.clear();
  for (auto& blocks : encoder_.blocks) blocks.clear();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    cross_lengths_.push_back(row.lease->num_cross_tokens());
    if (static_cast<int64_t>(i) < leading_rows_.rows) {
      leading_rows_.cross_keys = std::max(leading_rows_.cross_keys, cross_lengths_.back());
    }
    histories_.push_back(row.history);
    if (!row.encoder_tokens.empty()) FillEncoderRow(row, i);
  }
}

void StepBatch::FillEncoderRow(const StepRow& row, size_t index) {
  const int64_t count = static_cast<int64_t>(row.encoder_tokens.size());
  AddTiles(static_cast<int64_t>(encoder_.rows.size()), count, &encoder_.tiles);
  encoder_.rows.push_back(
      {.first_token = static_cast<int64_t>(encoder_.positions.size()), .num_tokens = count, .start = 0});
  encoder_.lengths.push_back(count);
  for (int64_t i = 0; i < count; ++i) {
    encoder_.host_token_ids.push_back(row.encoder_tokens[i]);
    encoder_.positions.push_back(i);
  }
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    if (plan_.groups[g].kind == CacheKind::kCross) encoder_.blocks[g].push_back(blocks_[g][index]);
  }
}

at::Tensor StepBatch::ToDevice(const std::vector<int64_t>& values) const {
  // The host vector outlives the step, so the CPU tensor is a view of it.
  const at::Tensor host = at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                                        at::TensorOptions().dtype(at::kLong));
  // Pinned memory goes back to its pool when the transfer is done, not before.
  return device_.is_cpu() ? host : host.pin_memory().to(device_, /*non_blocking=*/true);
}

}  // namespace berth
