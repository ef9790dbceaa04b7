// States to checkpoints and back, as bytes: CheckpointTensor says how a checkpoint lies. The same states always give
// the same bytes. Functions; thread-safe. No torch here.
#ifndef BERTH_CACHE_CHECKPOINT_H_
#define BERTH_CACHE_CHECKPOINT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "cache/spec.h"

namespace berth {

// `states`: a unit of the state group. `checkpoint`: one of the checkpoint group, of which every byte is written. They
// may not overlap.
void QuantiseStates(absl::Span<const CheckpointTensor> tensors, const std::byte* states, std::byte* checkpoint);

// The other way: writes the states that are in the checkpoint, but not the padding between them. What was quantised is
// off by at most 1/253 of its group's largest number.
void ExpandStates(absl::Span<const CheckpointTensor> tensors, const std::byte* checkpoint, std::byte* states);

}  // namespace berth

#endif  // BERTH_CACHE_CHECKPOINT_H_
