#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace berth::ops::cuda {
// The kernels declare it; see models/kernels/cuda/device.cuh.
float4 shared_memory[(kMostSharedBytes + 256) / sizeof(float4)];
}  // namespace berth::ops::cuda

namespace cuda_emulation {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned char kPoison = 0xFF;  // bytes of a NaN
constexpr unsigned char kFence = 0xA5;
constexpr size_t kFenceBytes = 256;

[[noreturn]] void Die(const char* what) {
  fprintf(stderr, "CUDA emulation: %s; block (%u, %u, %u), thread %u\n", what, blockIdx.x, blockIdx.y, blockIdx.z,
          threadIdx.x);
  abort();
}

// Where `size` threads meet, again and again.
struct Meeting {
  int size = 0;
  int arrived = 0;
  int64_t generation = 0;
};

struct Fibre {
  std::unique_ptr<char[]> stack;
  jmp_buf where;
  bool running = false;  // the block's thread has not returned
  const Meeting* waits_for = nullptr;
  int64_t generation = 0;  // of the meeting that it waits to end
  int64_t exchanges = 0;
};

struct Warp {
  Meeting meeting;
  // Two sets: a thread may give its next before the others have taken the last.
  std::array<std::array<uint64_t, kWarp>, 2> given;
};

Order order = Order::kAscending;
std::vector<Fibre> fibres;
std::vector<Warp> warps;
Meeting block;
jmp_buf scheduler;
const std::function<void()>* body;
int current = 0;
int64_t num_blocks = 0;

// Returns to the scheduler, which runs other threads and then comes back here.
[[gnu::noinline]] void Yield() {
  if (_setjmp(fibres[current].where) == 0) _longjmp(scheduler, 1);
}

// A fibre outlives its block: it waits for the next one, as before its first.
void FibreMain() {
  for (;;) {
    Yield();
    (*body)();
    fibres[current].running = false;
  }
}

void CreateFibres(int threads) {
  const size_t first = fibres.size();
  if (first == 0) fibres.reserve(kMostThreads);  // they stay where they are
  for (size_t i = first; i < static_cast<size_t>(threads); ++i) {
    Fibre& fibre = fibres.emplace_back();
    fibre.stack = std::make_unique<char[]>(kStackBytes);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fibre.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, FibreMain, 0);
    current = static_cast<int>(i);
    if (_setjmp(scheduler) == 0) setcontext(&context);
  }
}

void Resume(int thread) {
  current = thread;
  threadIdx = dim3(static_cast<unsigned>(thread), 0, 0);
  if (_setjmp(scheduler) == 0) _longjmp(fibres[thread].where, 1);
}

void Meet(Meeting* meeting) {
  if (++meeting->arrived == meeting->size) {
    meeting->arrived = 0;
    ++meeting->generation;
    return;
  }
  Fibre& fibre = fibres[current];
  fibre.waits_for = meeting;
  fibre.generation = meeting->generation;
  Yield();
  fibre.waits_for = nullptr;
}

bool CanRun(const Fibre& fibre) {
  return fibre.running && (fibre.waits_for == nullptr || fibre.waits_for->generation != fibre.generation);
}

// Resumes each thread of the warp that can run. Whether there was one.
bool RunWarp(int warp) {
  bool any = false;
  for (int i = 0; i < kWarp; ++i) {
    const int t = warp * kWarp + (order == Order::kAscending ? i : kWarp - 1 - i);
    if (!CanRun(fibres[t])) continue;
    any = true;
    Resume(t);
  }
  return any;
}

}  // namespace

void SetOrder(Order new_order) { order = new_order; }
Order CurrentOrder() { return order; }
int64_t NumBlocks() { return num_blocks; }
int LaneOfThread() { return current % kWarp; }
void WaitForBlock() { Meet(&block); }

const std::array<uint64_t, kWarp>& Exchange(unsigned mask, uint64_t bits) {
  if (mask != 0xFFFFFFFFu) Die("a shuffle of part of a warp");
  Warp& warp = warps[current / kWarp];
  auto& given = warp.given[fibres[current].exchanges++ % 2];
  given[current % kWarp] = bits;
  Meet(&warp.meeting);
  return given;
}

namespace {

// The first or the second of two numbers of bfloat16.
float NumberOf(uint64_t pair, int64_t which) {
  const uint32_t bits = static_cast<uint32_t>(pair >> (which * 16)) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

void AddProduct(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const std::array<float*, 4>& sums) {
  const auto both = [](uint64_t first, uint64_t second) { return first | second << 32; };
  // From each thread: its pairs of rows g and g + 8 in the first half of the summed dimension and in the second half,
  // and its pairs of b.
  const std::array<uint64_t, kWarp> first_half = Exchange(0xFFFFFFFFu, both(a[0], a[1]));
  const std::array<uint64_t, kWarp> second_half = Exchange(0xFFFFFFFFu, both(a[2], a[3]));
  const std::array<uint64_t, kWarp>& b = Exchange(0xFFFFFFFFu, both(b0, b1));
  const int row = LaneOfThread() / 4;
  const int column = LaneOfThread() % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const uint64_t of_row = (k < 8 ? first_half : second_half)[row * 4 + pair] >> (i / 2 * 32);
      const uint64_t of_column = b[(column + i % 2) * 4 + pair] >> (k / 8 * 32);
      *sums[i] = fmaf(NumberOf(of_row, k % 2), NumberOf(of_column, k % 2), *sums[i]);
    }
  }
}

void RunBlock(int threads, size_t shared_bytes, const std::function<void()>& thread) {
  if (threads > kMostThreads || threads % kWarp != 0) Die("a block of a size that is no whole number of warps");
  if (shared_bytes > kMostSharedBytes) Die("too much shared memory");
  ++num_blocks;
  CreateFibres(threads);
  body = &thread;
  block = {.size = threads};
  warps.assign(threads / kWarp, Warp{.meeting = {.size = kWarp}, .given = {}});
  for (int t = 0; t < threads; ++t) {
    fibres[t].running = true;
    fibres[t].exchanges = 0;
  }
  auto* shared = reinterpret_cast<unsigned char*>(berth::ops::cuda::shared_memory);
  memset(shared, kPoison, shared_bytes);
  memset(shared + shared_bytes, kFence, kFenceBytes);
  const int num_warps = threads / kWarp;
  for (bool any = true; any;) {
    any = false;
    for (int w = 0; w < num_warps; ++w) {
      while (RunWarp(order == Order::kAscending ? w : num_warps - 1 - w)) any = true;
    }
  }
  for (int t = 0; t < threads; ++t) {
    threadIdx.x = static_cast<unsigned>(t);
    if (fibres[t].running) Die("a barrier that not all threads reach");
  }
  for (size_t i = 0; i < kFenceBytes; ++i) {
    if (shared[shared_bytes + i] != kFence) Die("a write past the shared memory");
  }
}

}  // namespace cuda_emulation
