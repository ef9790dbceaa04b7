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

// State `state` of a layer in row `row`'s unit.
inline at::Tensor StateView(const StepBatch& batch, int layer, int state, int64_t row, at::IntArrayRef shape,
                            at::ScalarType type) {
  const LayerCacheSlot& slot = batch.slot(layer);
  return ArenaView(batch, batch.units(slot.state_group)[row] + slot.state_offsets[state], shape, type);
}

inline at::Tensor RowSlice(const at::Tensor& x, const ops::Row& row) {
  return x.narrow(0, row.first_token, row.num_tokens);
}

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_REFERENCE_VIEWS_H_
