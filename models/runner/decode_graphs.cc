#include "models/runner/decode_graphs.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "absl/status/status.h"
#include "models/layers/rotary.h"
#include "models/step/device_error.h"

namespace berth {
namespace {

static_assert(RotaryEmbedding::kTablePositions >= kMostGraphKeys, "a graph reads all positions from tables");

// Whether all rows decode, and see no more than `keys` keys.
bool Decodes(const StepPlan& plan, int64_t keys) {
  return !plan.empty() && static_cast<int64_t>(plan.rows.size()) <= kMostGraphRows &&
         std::all_of(plan.rows.begin(), plan.rows.end(),
                     [keys](const StepRow& row) { return row.num_tokens() == 1 && row.sample && row.start < keys; });
}

// Parts of kSplitTokens keys of all rows, summed.
int64_t SplitsOf(const StepPlan& plan) {
  int64_t splits = 0;
  for (const StepRow& row : plan.rows) splits += ops::NumSplits(row.start + 1);
  return splits;
}

// Returns a view of these numbers, without a share in their memory.
at::Tensor ViewOf(const at::Tensor& x) {
  return at::from_blob(
      x.data_ptr(), x.sizes(), x.strides(), /*storage_offset=*/0, [](void*) {}, x.options(),
      /*target_device=*/x.device());
}

}  // namespace

at::Tensor DecodeGraphs::Forward(const StepPlan& plan, StepBatch* batch) {
  if (!refusal_.empty() || batch->has_cross() || !Decodes(plan, keys_)) return {};
  const GraphShape shape = {.rows = GraphRowsFor(static_cast<int64_t>(plan.rows.size())), .keys = keys_};
  if (SplitsOf(plan) > shape.splits()) return {};
  const bool is_first = !recorded_.contains(shape.rows);
  try {
    batch->Fill(plan, shape);
    return Compute(shape.rows, batch).narrow(0, 0, static_cast<int64_t>(plan.rows.size()));
  } catch (const c10::Error& error) {
    if (absl::IsDataLoss(DeviceError("", error))) throw;
    // Layers that ran have moved their states on, so the step must not run again.
    if (is_first && dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
      recorded_.erase(shape.rows);
      throw;
    }
    refusal_ = error.what_without_backtrace();
    recorded_.clear();
    on_refusal_(refusal_);
    return {};
  }
}

at::Tensor DecodeGraphs::Compute(int64_t rows, StepBatch* batch) {
  if (batch->copy_address() != address_) {
    for (auto& [of_rows, recorded] : recorded_) recorded = {};
    address_ = batch->copy_address();
  }
  const auto [seen, is_first] = recorded_.try_emplace(rows);
  return is_first ? model_->Forward(*batch) : Launch(&seen->second, batch);
}

at::Tensor DecodeGraphs::Launch(Recorded* recorded, StepBatch* batch) {
  if (recorded->graph == nullptr) {
    recorded->graph = recorder_->Record([this, recorded, batch] { recorded->logits = model_->Forward(*batch); });
    // Another graph's tensors may lie in this one's memory: only one of them is of use at a time. (A recorder of tests
    // may call `work` at the launch only.)
    if (recorded->logits.defined()) recorded->logits = ViewOf(recorded->logits);
  }
  recorded->graph->Launch();
  ++num_launches_;
  return recorded->logits;
}

}  // namespace berth
