// Runs the CPU kernels of an operation: hands them the rows of tensors, and divides their items among the threads.
#ifndef BERTH_MODELS_OPS_PARALLEL_H_
#define BERTH_MODELS_OPS_PARALLEL_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "models/ops/cpu_kernels.h"
#include "models/step/cache_line.h"
#include "models/step/execution.h"
#include "models/step/step_batch.h"
#include "models/step/thread_pool.h"

namespace berth::ops {

// The smallest task that is given to another thread, in float operations: 8 to 20 microseconds of one thread. Smaller
// tasks did not make a step of the demo model faster. Handing one over takes a microsecond (thread_pool.h), and moving
// its data to the other core takes longer.
inline constexpr int64_t kOperationsPerTask = 1 << 17;
// Tasks for each thread. With several, a thread that starts late leaves little for the others to wait for.
inline constexpr int64_t kTasksPerThread = 4;

// Throws if the numbers of a row are not side by side. Rows themselves may be any stride apart.
inline void CheckRows(const at::Tensor& x) {
  TORCH_CHECK(x.size(-1) <= 1 || x.stride(-1) == 1, "a kernel's argument has a stride of ", x.stride(-1), " in a row");
}

// The address of x's first row.
inline const void* RowsOf(const at::Tensor& x) {
  CheckRows(x);
  return x.const_data_ptr();
}

inline DType TypeOf(const at::Tensor& x) { return x.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16; }

// The mean number of tokens in a row, rounded up.
inline int64_t TokensPerRow(const StepBatch& batch) {
  return (batch.num_tokens() + batch.num_rows() - 1) / batch.num_rows();
}

inline int64_t TokensPerRow(const StatePhase& phase) {
  return (phase.num_tokens + phase.num_rows - 1) / phase.num_rows;
}

// Rows of this many tokens or more are computed by matrix products: `tokens`, or no row.
inline int64_t ChunkedFrom(int64_t tokens, const Execution& execution) {
  return execution.chunk_invariant_scans ? std::numeric_limits<int64_t>::max() : tokens;
}

// The CPU kernels that the execution names, else the best of this machine.
inline const cpu::Kernels& CpuKernels(const Execution& execution) {
  return execution.cpu_kernels != nullptr ? *execution.cpu_kernels : cpu::GetKernels();
}

// How many tiles of queries one item of an attention computes on the CPU. `items`: how many items there would be with
// one tile each. With more tiles, keys and values are packed less often. The tiles' queries and sums, `tile_bytes` for
// each, must stay in the second cache, and there must be items for all threads. No bit depends on it.
inline int64_t TilesPerItem(int64_t items, int64_t tile_bytes, const Execution& execution) {
  constexpr int64_t kMostBytes = 256 << 10, kMostTiles = 8;
  const int64_t most = std::min(kMostTiles, items / (kTasksPerThread * execution.num_threads()));
  return std::max<int64_t>(1, std::min(most, kMostBytes / tile_bytes));
}

// Runs an operation's items [0, items) on the CPU, divided among the threads. One item takes about `operations` float
// operations. `entry` is a member of cpu::Kernels.
template <typename Args>
void RunOnCpu(cpu::Kernel<Args> (cpu::Kernels::*entry)[2], DType type, const Args& args, int64_t items,
              int64_t operations, Execution& execution) {
  const cpu::Kernel<Args>& kernel = (CpuKernels(execution).*entry)[TypeIndex(type)];
  const int num_threads = execution.num_threads();
  const int64_t worker_bytes = RoundUp(kernel.scratch_bytes(args), kCacheLine);
  char* const scratch = worker_bytes > 0 ? execution.Scratch(num_threads * worker_bytes) : nullptr;
  const int64_t least = kOperationsPerTask / std::max<int64_t>(1, operations);
  const int64_t grain = std::max({int64_t{1}, least, items / (kTasksPerThread * num_threads)});
  ShareItems(execution.threads, items, grain, [&](int64_t begin, int64_t end, int thread) {
    kernel.run(args, begin, end, scratch + thread * worker_bytes);
  });
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_PARALLEL_H_
