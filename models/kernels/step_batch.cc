#include "models/kernels/step_batch.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace berth {

StepBatch::StepBatch(CachePlan plan, std::byte* arena, at::Device device)
    : plan_(std::move(plan)),
      arena_(reinterpret_cast<char*>(arena)),
      device_(device),
      blocks_(plan_.groups.size()),
      units_(plan_.groups.size()) {}

void StepBatch::Fill(const StepPlan& step) {
  num_tokens_ = 0;
  max_position_ = 0;
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
  for (size_t i = 0; i < step.rows.size(); ++i) {
    FillRow(step.rows[i]);
    if (!step.rows[i].sample) continue;
    sample_rows_.push_back(static_cast<int>(i));
    host_sample_tokens_.push_back(num_tokens_ - 1);
  }
  token_ids_ = ToDevice(host_token_ids_);
  sample_tokens_ = ToDevice(host_sample_tokens_);
}

void StepBatch::FillRow(const StepRow& row) {
  const int64_t count = static_cast<int64_t>(row.tokens.size());
  const int64_t index = static_cast<int64_t>(rows_.size());
  rows_.push_back({.first_token = num_tokens_, .num_tokens = count, .start = row.start});
  prompt_lengths_.push_back(row.prompt_length);
  sequence_lengths_.push_back(row.sequence_length);
  for (int64_t i = 0; i < count; ++i) {
    host_token_ids_.push_back(row.tokens[i]);
    positions_.push_back(row.start + i);
  }
  for (int64_t first = 0; first < count; first += cpu::kQueryTile) {
    tiles_.push_back(index);
    tiles_.push_back(first);
  }
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    if (plan_.groups[g].kind == CacheKind::kRecurrent) {
      units_[g].push_back(row.lease->state_unit(static_cast<int>(g)));
    } else {
      const BlockTable table = row.lease->blocks(static_cast<int>(g));
      blocks_[g].push_back({.offsets = table.offsets.data(), .first_block = table.first_block});
    }
  }
  num_tokens_ += count;
  max_position_ = std::max(max_position_, row.start + count - 1);
}

at::Tensor StepBatch::ToDevice(const std::vector<int64_t>& values) const {
  // The host vector outlives the step, so the CPU tensor is a view of it.
  const at::Tensor host = at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                                        at::TensorOptions().dtype(at::kLong));
  return device_.is_cpu() ? host : host.to(device_);
}

}  // namespace berth
