// How the dispatch of the CPU kernels hands them rows, and splits their items over the pool's threads.
#ifndef BERTH_MODELS_OPS_PARALLEL_H_
#define BERTH_MODELS_OPS_PARALLEL_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "models/ops/cpu_kernels.h"
#include "models/step/step_batch.h"
#include "models/step/thread_pool.h"

namespace berth::ops {

// Below this many float operations, 8 to 20 microseconds of one thread, a second brought nothing in a step of the demo
// model: handing over takes one of them (thread_pool.h), the data's way to the other core more.
inline constexpr int64_t kOperationsPerTask = 1 << 17;
// Pieces for each thread: the last to begin leaves the others little to wait for.
inline constexpr int64_t kPiecesPerThread = 4;

// A kernel steps from row to row by a stride, but within a row by one: others are refused.
inline void CheckRows(const at::Tensor& x) {
  TORCH_CHECK(x.size(-1) <= 1 || x.stride(-1) == 1, "a kernel's argument has a stride of ", x.stride(-1), " in a row");
}

// Where x's rows begin.
inline const void* RowsOf(const at::Tensor& x) {
  CheckRows(x);
  return x.const_data_ptr();
}

inline TypeIndex TypeOf(const at::Tensor& x) { return x.scalar_type() == at::kFloat ? kF32 : kBF16; }

// On average, rounded up.
inline int64_t TokensPerRow(const StepBatch& batch) {
  return (batch.num_tokens() + batch.num_rows() - 1) / batch.num_rows();
}

// Runs kernel(begin, end, thread), or kernel(begin, end), over [0, items), each item costing about `operations`.
template <typename Kernel>
void Parallel(int64_t items, int64_t operations, const Kernel& kernel) {
  const int64_t least = kOperationsPerTask / std::max<int64_t>(1, operations);
  const int64_t grain = std::max({int64_t{1}, least, items / (kPiecesPerThread * NumThreads())});
  ShareItems(items, grain, [&](int64_t begin, int64_t end, int thread) {
    if constexpr (std::is_invocable_v<Kernel, int64_t, int64_t, int>) {
      kernel(begin, end, thread);
    } else {
      kernel(begin, end);
    }
  });
}

inline constexpr int64_t kCacheLine = 64;  // bytes

inline int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// So many bytes from a cache line on, of what `kept` keeps from call to call.
inline char* OnCacheLine(int64_t size_bytes, std::vector<char>* kept) {
  if (static_cast<int64_t>(kept->size()) < size_bytes + kCacheLine) kept->resize(size_bytes + kCacheLine);
  return reinterpret_cast<char*>(RoundUp(reinterpret_cast<int64_t>(kept->data()), kCacheLine));
}

// Runs an operation's items [0, items) on the CPU, each costing about `operations`, by the pool's threads. `entry` is a
// member of cpu::Kernels.
template <typename Args>
void RunOnCpu(cpu::Kernel<Args> (cpu::Kernels::*entry)[2], TypeIndex type, const Args& args, int64_t items,
              int64_t operations) {
  static thread_local std::vector<char> kept;  // the workers' scratch, for the next call on this thread
  const cpu::Kernel<Args>& kernel = (cpu::GetKernels().*entry)[type];
  const int64_t worker_bytes = RoundUp(kernel.scratch_bytes(args), kCacheLine);
  char* const scratch = worker_bytes > 0 ? OnCacheLine(NumThreads() * worker_bytes, &kept) : nullptr;
  Parallel(items, operations, [&](int64_t begin, int64_t end, int thread) {
    kernel.run(args, begin, end, scratch + thread * worker_bytes);
  });
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_PARALLEL_H_
