#include "models/runner/decode_graphs.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "models/layers/rotary.h"

namespace berth {
namespace {

constexpr int64_t kMostRows = 256;
constexpr int64_t kLeastKeys = 256;
// Each has some hundred nodes, and its logits.
constexpr size_t kMostShapes = 64;

bool Decodes(const StepPlan& plan) {
  return !plan.empty() && static_cast<int64_t>(plan.rows.size()) <= kMostRows &&
         std::all_of(plan.rows.begin(), plan.rows.end(), [](const StepRow& row) {
           return row.num_tokens() == 1 && row.sample && row.start < RotaryEmbedding::kTablePositions;
         });
}

GraphShape ShapeOf(const StepPlan& plan) {
  int64_t keys = kLeastKeys;
  for (const StepRow& row : plan.rows) keys = std::max(keys, row.start + 1);
  return {.rows = PowerOfTwoFrom(static_cast<int64_t>(plan.rows.size())), .keys = PowerOfTwoFrom(keys)};
}

}  // namespace

at::Tensor DecodeGraphs::Forward(const StepPlan& plan, StepBatch* batch) {
  if (!refusal_.empty() || batch->has_cross() || !Decodes(plan)) return {};
  const GraphShape shape = ShapeOf(plan);
  const auto seen = shapes_.find(shape);
  if (seen == shapes_.end()) {
    if (shapes_.size() < kMostShapes) shapes_[shape];
    return {};
  }
  batch->Fill(plan, shape);
  if (batch->copy_address() != address_) {
    for (auto& [of_graph, recorded] : shapes_) recorded = {};
    address_ = batch->copy_address();
  }
  Recorded* recorded = &seen->second;
  if (recorded->graph == nullptr) recorded = Record(shape, batch);
  if (recorded == nullptr) return {};
  recorded->graph->Launch();
  ++num_launches_;
  return recorded->logits.narrow(0, 0, static_cast<int64_t>(plan.rows.size()));
}

DecodeGraphs::Recorded* DecodeGraphs::Record(const GraphShape& shape, StepBatch* batch) {
  Recorded* const recorded = &shapes_[shape];
  try {
    recorded->graph = recorder_->Record([this, recorded, batch] { recorded->logits = model_->Forward(*batch); });
    return recorded;
  } catch (const c10::Error& error) {
    refusal_ = error.what_without_backtrace();
    shapes_.clear();
    return nullptr;
  }
}

}  // namespace berth
