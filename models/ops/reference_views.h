// What the ATen references see of a step: the arena as tensors, a row of the packed ones. Engine thread only.
#ifndef BERTH_MODELS_OPS_REFERENCE_VIEWS_H_
#define BERTH_MODELS_OPS_REFERENCE_VIEWS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>

#include "models/step/step_batch.h"

namespace berth::reference {

inline at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kInt8:
      return at::kChar;
    case DType::kInt4:
      return at::kByte;  // two numbers each
  }
  return at::kFloat;
}

// The arena's bytes from `offset` on, as a tensor on the batch's device.
inline at::Tensor ArenaView(const StepBatch& batch, int64_t offset, at::IntArrayRef shape, at::ScalarType type) {
  return at::from_blob(batch.arena() + offset, shape, at::TensorOptions().dtype(type).device(batch.device()));
}

// Calls body(row, length of its prompt, state `state` of a layer in its unit) for each row, phase by phase. So a row
// with marks comes once for each part. Copies the states to the marks.
template <typename Body>
void ForEachStateRow(const StepBatch& batch, int layer, int state, at::IntArrayRef shape, at::ScalarType type,
                     const Body& body) {
  const int64_t offset = batch.slot(layer).state_offsets[state];
  const auto view = [&](int64_t unit) { return ArenaView(batch, unit + offset, shape, type); };
  for (const StatePhase& phase : batch.host_phases()) {
    for (int64_t r = 0; r < phase.num_rows; ++r) {
      body(phase.host_rows[r], phase.host_lengths[r], view(phase.host_units[r]));
    }
    for (const StateCopy& copy : phase.copies) view(copy.to).copy_(view(copy.from));
  }
}

inline at::Tensor RowSlice(const at::Tensor& x, const ops::Row& row) {
  return x.narrow(0, row.first_token, row.num_tokens);
}

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_REFERENCE_VIEWS_H_
