// Quantises states to checkpoints and expands them, as bytes; CheckpointTensor describes the layout. Equal states
// always give equal bytes. Pure functions; thread-safe. No torch here.
#ifndef BERTH_CACHE_CHECKPOINT_H_
#define BERTH_CACHE_CHECKPOINT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "cache/spec.h"

namespace berth {

// Quantises `states`, a unit of the state group, into `checkpoint`, a unit of the checkpoint group. Writes every byte
// of it. The two must not overlap.
void QuantiseStates(absl::Span<const CheckpointTensor> tensors, const std::byte* states, std::byte* checkpoint);

// Expands `checkpoint` into `states`; does not write the padding between states. A quantised number is off by at most
// 1/253 of its group's largest number.
void ExpandStates(absl::Span<const CheckpointTensor> tensors, const std::byte* checkpoint, std::byte* states);

}  // namespace berth

#endif  // BERTH_CACHE_CHECKPOINT_H_
