#include "models/runner/decode_graphs.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "absl/status/status.h"
#include "models/layers/rotary.h"
#include "models/step/device_error.h"

namespace berth {
namespace {

bool Decodes(const StepPlan& plan) {
  return !plan.empty() && static_cast<int64_t>(plan.rows.size()) <= kMostGraphRows &&
         std::all_of(plan.rows.begin(), plan.rows.end(), [](const StepRow& row) {
           return row.num_tokens() == 1 && row.sample && row.start < RotaryEmbedding::kTablePositions;
         });
}

GraphShape ShapeOf(const StepPlan& plan) {
  int64_t keys = kLeastGraphKeys;
  for (const StepRow& row : plan.rows) keys = std::max(keys, row.start + 1);
  return {.rows = PowerOfTwoFrom(static_cast<int64_t>(plan.rows.size())), .keys = PowerOfTwoFrom(keys)};
}

}  // namespace

at::Tensor DecodeGraphs::Forward(const StepPlan& plan, StepBatch* batch) {
  if (!refusal_.empty() || batch->has_cross() || !Decodes(plan)) return {};
  const GraphShape shape = ShapeOf(plan);
  if (!shapes_.contains(shape) && static_cast<int64_t>(shapes_.size()) >= kMostGraphShapes) return {};
  try {
    batch->Fill(plan, shape);
    return Compute(shape, batch).narrow(0, 0, static_cast<int64_t>(plan.rows.size()));
  } catch (const c10::Error& error) {
    if (absl::IsDataLoss(DeviceError("", error))) throw;
    refusal_ = error.what_without_backtrace();
    shapes_.clear();
    on_refusal_(refusal_);
    return {};
  }
}

at::Tensor DecodeGraphs::Compute(const GraphShape& shape, StepBatch* batch) {
  if (batch->copy_address() != address_) {
    for (auto& [of_graph, recorded] : shapes_) recorded = {};
    address_ = batch->copy_address();
  }
  const auto [seen, is_first] = shapes_.try_emplace(shape);
  return is_first ? model_->Forward(*batch) : Launch(&seen->second, batch);
}

at::Tensor DecodeGraphs::Launch(Recorded* recorded, StepBatch* batch) {
  if (recorded->graph == nullptr) {
    recorded->graph = recorder_->Record([this, recorded, batch] { recorded->logits = model_->Forward(*batch); });
  }
  recorded->graph->Launch();
  ++num_launches_;
  return recorded->logits;
}

}  // namespace berth
