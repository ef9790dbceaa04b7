#include "models/ops/state_phases.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

// What one thread copies at a time: enough that sharing it out is cheap.
constexpr int64_t kPieceBytes = 256 << 10;

}  // namespace

void CopyMarkedStates(const StepBatch& batch, const StatePhase& phase, int64_t offset, int64_t size_bytes) {
  if (phase.copies.empty()) return;
  char* const arena = batch.arena() + offset;
  // A GPU's memory, or that of an emulated one.
  if (!batch.device().is_cpu() || batch.execution().cuda_kernels != nullptr) {
    const auto bytes = [&](int64_t unit) {
      return at::from_blob(arena + unit, {size_bytes}, at::TensorOptions().dtype(at::kByte).device(batch.device()));
    };
    for (const StateCopy& copy : phase.copies) bytes(copy.to).copy_(bytes(copy.from), /*non_blocking=*/true);
    return;
  }
  const int64_t pieces = (size_bytes + kPieceBytes - 1) / kPieceBytes;
  const int64_t items = pieces * static_cast<int64_t>(phase.copies.size());
  const int64_t grain = std::max<int64_t>(1, kPieceBytes / size_bytes);
  ShareItems(batch.execution().threads, items, grain, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t item = begin; item < end; ++item) {
      const StateCopy& copy = phase.copies[item / pieces];
      const int64_t from = item % pieces * kPieceBytes;
      std::memcpy(arena + copy.to + from, arena + copy.from + from, std::min(kPieceBytes, size_bytes - from));
    }
  });
}

}  // namespace berth::ops
