#include "models/ops/checkpoint/checkpoint.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/ops/backend.h"

namespace berth::ops {

static_assert(kStateGroup == kCheckpointGroup);

void CheckpointConverter::operator()(const at::Tensor& arena, const StateConversion& conversion) {
  const absl::Span<const CheckpointTensor> tensors = conversion.tensors;
  const auto count = static_cast<int64_t>(tensors.size());
  if (tensors.data() != tensors_.data() || tensors.size() != tensors_.size()) {
    constexpr int64_t kFields = sizeof(CheckpointState) / sizeof(int64_t);
    const at::Tensor table = at::empty({count, kFields}, at::kLong);
    auto* to = reinterpret_cast<CheckpointState*>(table.mutable_data_ptr<int64_t>());
    for (const CheckpointTensor& t : tensors) {
      *to++ = {t.state_offset, t.num_elements, static_cast<int64_t>(t.dtype), t.offset, t.scale_offset, t.size_bytes};
    }
    table_ = table.to(arena.device());
    tensors_ = tensors;
  }
  char* const base = static_cast<char*>(arena.data_ptr());
  ConvertStatesArgs args = {.states = base + conversion.states,
                            .checkpoint = base + conversion.checkpoint,
                            .tensors = reinterpret_cast<const CheckpointState*>(table_.const_data_ptr<int64_t>()),
                            .num_tensors = count,
                            .most_elements = 0,
                            .expands = conversion.expands};
  for (const CheckpointTensor& t : tensors) args.most_elements = std::max(args.most_elements, t.num_elements);
  CheckLaunched(kernels_->convert_states[0](args, LaunchParamsFor(arena)));
}

}  // namespace berth::ops
