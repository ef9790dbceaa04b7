// The threads that share a step's kernels. A worker that has done its share spins for kLookOut, then sleeps, so an idle
// server uses no core. On a virtual machine of two cores, handing work over takes 0.8 microseconds if the workers spin
// and 400 if they sleep. The measurement:
//   bazel run -c opt //bench:matmul_bench -- --threads=2 --benchmark_filter=HandOver
//
// While workers spin, they read ahead what ReadAhead named: memory would else be idle during the scalar work between
// two products.
//
// Run() waits only for workers that have started. A worker that wakes late, or has no core, finds its share done by
// the others. So threads take pieces of work off a common counter, and the work must be complete whichever threads
// take part.
#ifndef BERTH_MODELS_STEP_THREAD_POOL_H_
#define BERTH_MODELS_STEP_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace berth {

class ThreadPool {
 public:
  // Longer than the scalar work between two kernels of a step.
  static constexpr std::chrono::microseconds kLookOut{100};
  // About half of a core's second cache. With 256 KiB, 1 and 2 MiB, steps took 1 to 2 % longer.
  static constexpr int64_t kReadAheadBytes = int64_t{1} << 19;

  // REQUIRES: num_threads > 0. The caller of Run is one of them.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(0) on this thread and, each at most once, work(i) on others, 0 < i < num_threads(); returns when all
  // that began have ended. Rethrows the first exception. One caller at a time, and not from within work.
  void Run(absl::FunctionRef<void(int thread)> work);

  // Memory that a later Run will read. Workers that spin ask for it, kReadAheadBytes of it at most, into their caches.
  // It is a hint: the memory need not be there any more. The next call replaces it.
  void ReadAhead(const char* begin, int64_t size_bytes);

 private:
  // The offered work in one word. Low half: the number of workers that have begun and not ended, and kClosed once the
  // caller has ended. High half: the number of the call.
  static constexpr uint64_t kClosed = uint64_t{1} << 31;
  static constexpr uint64_t kBegun = kClosed - 1;

  // What a worker has asked for of the memory that was named last.
  struct Reading {
    const char* begin = nullptr;
    int64_t asked = 0;
  };

  void Loop(int thread);
  // Returns the number of the call after `seen`, or of a later one.
  uint32_t AwaitCallAfter(uint32_t seen, int thread, Reading* reading);
  void Call(absl::FunctionRef<void(int)> work, int thread);

  std::atomic<uint64_t> offer_{kClosed};
  std::atomic<uint32_t> last_call_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  // A worker may see one without the other. It then asks for memory that no product reads.
  std::atomic<const char*> ahead_{nullptr};
  std::atomic<int64_t> ahead_bytes_{0};
  const absl::FunctionRef<void(int)>* work_ = nullptr;  // read by workers that have begun
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // of the first that failed
  std::vector<std::thread> workers_;
};

// The threads of the pool; 1 without one.
inline int NumThreads(const ThreadPool* pool) { return pool == nullptr ? 1 : pool->num_threads(); }

// Runs work(begin, end, thread) over [0, items) in pieces of `grain`. A thread that is done takes the next piece.
// 0 <= thread < NumThreads(pool). Null: this thread does all.
template <typename Work>
void ShareItems(ThreadPool* pool, int64_t items, int64_t grain, const Work& work) {
  if (pool == nullptr || pool->num_threads() == 1 || items <= grain) {
    if (items > 0) work(int64_t{0}, items, 0);
    return;
  }
  std::atomic<int64_t> next = 0;
  pool->Run([&](int thread) {
    for (int64_t i = next.fetch_add(grain); i < items; i = next.fetch_add(grain)) {
      work(i, std::min(i + grain, items), thread);
    }
  });
}

}  // namespace berth

#endif  // BERTH_MODELS_STEP_THREAD_POOL_H_
