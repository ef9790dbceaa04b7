// Quantises states to checkpoints and expands them on the arena's device; see cache/checkpoint.h, which does it on the
// CPU. Engine thread only.
#ifndef BERTH_MODELS_OPS_CHECKPOINT_CHECKPOINT_H_
#define BERTH_MODELS_OPS_CHECKPOINT_CHECKPOINT_H_

#include <ATen/core/Tensor.h>

#include "cache/storage.h"
#include "models/ops/cuda_kernels.h"

namespace berth::ops {

// A converter for TensorStorage.
class CheckpointConverter {
 public:
  explicit CheckpointConverter(const cuda::Kernels* kernels) : kernels_(kernels) {}

  // Enqueues the conversion in `arena`: [bytes], uint8, on the kernels' device. Throws c10::Error.
  void operator()(const at::Tensor& arena, const StateConversion& conversion);

 private:
  const cuda::Kernels* kernels_;
  // The last conversion's tensors, and a copy on the device: [tensors, fields of CheckpointState], int64.
  absl::Span<const CheckpointTensor> tensors_;
  at::Tensor table_;
};

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_CHECKPOINT_CHECKPOINT_H_
