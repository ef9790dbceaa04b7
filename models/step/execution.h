// What operations run on: the kernels that serve them, the threads that share them, and the memory that the threads
// work in. The owner of a model builds one; StepBatch carries it through the layers, and what has no batch takes it as
// an argument. Engine thread only.
#ifndef BERTH_MODELS_STEP_EXECUTION_H_
#define BERTH_MODELS_STEP_EXECUTION_H_

#include <cstdint>
#include <vector>

#include "models/step/cache_line.h"
#include "models/step/read_order.h"
#include "models/step/thread_pool.h"

// Only named here, so that a step knows no operation.
namespace berth::ops::cpu {
struct Kernels;
}
namespace berth::ops::cuda {
struct Kernels;
class GraphRecorder;
}  // namespace berth::ops::cuda

namespace berth {

// All that it points to must outlive it.
struct Execution {
  const ops::cpu::Kernels* cpu_kernels = nullptr;      // null: the best set of this machine (cpu::GetKernels)
  const ops::cuda::Kernels* cuda_kernels = nullptr;    // null: none, so ATen's references run on a GPU
  ops::cuda::GraphRecorder* graph_recorder = nullptr;  // null: none, so every step is launched kernel by kernel
  ThreadPool* threads = nullptr;                       // null: kernels run on the calling thread alone
  // Recurrences sum token by token in prefill too, so no bit depends on how a prompt is cut into chunks. If false,
  // Mamba-2 and the gated delta net use matrix products, which is faster, but the order of their sums depends on the
  // chunk.
  bool chunk_invariant_scans = false;
  ReadOrder weights = {};       // which weights follow which
  std::vector<char> kept = {};  // Scratch's

  int num_threads() const { return NumThreads(threads); }
  // `size_bytes` of uninitialised memory, from a cache line on. The next call reuses them.
  char* Scratch(int64_t size_bytes) {
    if (static_cast<int64_t>(kept.size()) < size_bytes + ops::kCacheLine) kept.resize(size_bytes + ops::kCacheLine);
    return reinterpret_cast<char*>(ops::RoundUp(reinterpret_cast<int64_t>(kept.data()), ops::kCacheLine));
  }
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_EXECUTION_H_
