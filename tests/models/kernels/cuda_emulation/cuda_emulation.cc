#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/kernels/cuda_emulation/device_memory.h"
#include "tests/models/kernels/cuda_emulation/races.h"

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
  races::Time ended = 0;
};

struct AsyncCopy {
  void* to;
  const void* from;
  size_t size_bytes, zeros;
  bool done;
};

struct Fibre {
  std::unique_ptr<char[]> stack;
  jmp_buf where;
  bool running = false;  // the block's thread has not returned
  const Meeting* waits_for = nullptr;
  int64_t generation = 0;  // of the meeting that it waits to end
  int64_t exchanges = 0;
  std::vector<std::vector<AsyncCopy>> copies;  // by group; the last group is not committed yet
};

struct Warp {
  Meeting meeting;
  // Two sets: a thread may give its next before the others have taken the last.
  std::array<std::array<uint64_t, kWarp>, 2> given;
};

Order order = Order::kAscending;
uint32_t random_state = 1;
std::vector<Fibre> fibres;
std::vector<Warp> warps;
Meeting block;
jmp_buf scheduler;
const std::function<void()>* body;
int current = 0;
int64_t num_blocks = 0;
int64_t num_launches = 0;

// xorshift32
uint32_t RandomBelow(uint32_t limit) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state % limit;
}

// The numbers below `count` in the order of the turns.
template <size_t kMost>
std::array<int, kMost> Turns(int count) {
  std::array<int, kMost> turns;
  std::iota(turns.begin(), turns.begin() + count, 0);
  if (order == Order::kDescending) std::reverse(turns.begin(), turns.begin() + count);
  if (order != Order::kRandom) return turns;
  for (int i = count - 1; i > 0; --i) std::swap(turns[i], turns[RandomBelow(static_cast<uint32_t>(i) + 1)]);
  return turns;
}

// Returns to the scheduler, which runs other threads and then comes back here.
[[gnu::noinline]] void Yield() {
  races::Suspend();
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
  races::Resume({.thread = thread,
                 .stack = reinterpret_cast<uintptr_t>(fibres[thread].stack.get()),
                 .stack_bytes = kStackBytes,
                 .block_time = &block.ended,
                 .warp_time = &warps[thread / kWarp].meeting.ended});
  if (_setjmp(scheduler) == 0) _longjmp(fibres[thread].where, 1);
}

void Meet(Meeting* meeting) {
  if (++meeting->arrived == meeting->size) {
    meeting->arrived = 0;
    ++meeting->generation;
    meeting->ended = races::Advance();
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
  for (int i : Turns<kWarp>(kWarp)) {
    const int t = warp * kWarp + i;
    if (!CanRun(fibres[t])) continue;
    any = true;
    Resume(t);
  }
  return any;
}

void WaitNowAndThen() {
  constexpr uint32_t kAccesses = 64;
  if (RandomBelow(kAccesses) == 0) Yield();
}

void Land(AsyncCopy* copy) {
  if (std::exchange(copy->done, true)) return;
  const size_t copied = copy->size_bytes - copy->zeros;
  memcpy(copy->to, copy->from, copied);
  memset(static_cast<char*>(copy->to) + copied, 0, copy->zeros);
}

}  // namespace

void SetOrder(Order new_order, uint32_t seed) {
  order = new_order;
  random_state = seed * 2654435769u | 1u;  // any number but 0
  races::SetOnAccess(order == Order::kRandom ? WaitNowAndThen : nullptr);
}
int64_t NumBlocks() { return num_blocks; }
int64_t NumLaunches() { return num_launches; }
int LaneOfThread() { return current % kWarp; }
void WaitForBlock() { Meet(&block); }
void NoteAtomic(const void* p, size_t size_bytes) { races::Note(races::Access::kAtomic, p, size_bytes); }

void WaitForWarp(unsigned mask) {
  if (mask != 0xFFFFFFFFu) Die("a barrier of part of a warp");
  Meet(&warps[current / kWarp].meeting);
}

void Copy(void* to, const void* from, size_t size_bytes) {
  races::Note(races::Access::kRead, from, size_bytes);
  races::Note(races::Access::kWrite, to, size_bytes);
  memcpy(to, from, size_bytes);
}

void CopyLater(void* to, const void* from, size_t size_bytes, size_t zeros) {
  const auto is_aligned = [=](const void* p) { return reinterpret_cast<uintptr_t>(p) % size_bytes == 0; };
  if ((size_bytes != 4 && size_bytes != 8 && size_bytes != 16) || zeros > size_bytes) Die("cp.async of such a size");
  if (!is_aligned(to) || !is_aligned(from)) Die("an unaligned cp.async");
  races::Note(races::Access::kRead, from, size_bytes - zeros);
  races::NoteCopyBegins(to, size_bytes);
  auto& groups = fibres[current].copies;
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({to, from, size_bytes, zeros, false});
  if (order == Order::kDescending || (order == Order::kRandom && RandomBelow(2) == 0)) Land(&groups.back().back());
}

void CommitCopies() { fibres[current].copies.emplace_back(); }

void WaitForCopies(size_t groups_left) {
  auto& groups = fibres[current].copies;
  while (groups.size() > groups_left + 1) {
    for (AsyncCopy& copy : groups.front()) {
      Land(&copy);
      races::Note(races::Access::kRead, copy.from, copy.size_bytes - copy.zeros);
      races::NoteCopyEnds(copy.to, copy.size_bytes);
    }
    groups.erase(groups.begin());
  }
}

namespace {

// The bits of all the warp's threads; good until the next call.
const std::array<uint64_t, kWarp>& Exchange(unsigned mask, uint64_t bits) {
  if (mask != 0xFFFFFFFFu) Die("a shuffle of part of a warp");
  Warp& warp = warps[current / kWarp];
  auto& given = warp.given[fibres[current].exchanges++ % 2];
  given[current % kWarp] = bits;
  Meet(&warp.meeting);
  return given;
}

}  // namespace

uint64_t ExchangeWith(unsigned mask, uint64_t bits, int lane) {
  return Exchange(mask, bits).at(static_cast<size_t>(lane));
}

unsigned Ballot(unsigned mask, bool bit) {
  unsigned ballot = 0;
  unsigned lane = 0;
  for (uint64_t bits : Exchange(mask, bit ? 1 : 0)) ballot |= static_cast<unsigned>(bits) << lane++;
  return ballot;
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
    races::Note(races::Access::kWrite, sums[i], sizeof(float));
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const uint64_t of_row = (k < 8 ? first_half : second_half)[row * 4 + pair] >> (i / 2 * 32);
      const uint64_t of_column = b[(column + i % 2) * 4 + pair] >> (k / 8 * 32);
      *sums[i] = fmaf(NumberOf(of_row, k % 2), NumberOf(of_column, k % 2), *sums[i]);
    }
  }
}

namespace {

// Runs all the block's threads until they have returned or all wait.
void RunThreads(int num_warps) {
  for (bool any = true; any;) {
    any = false;
    const auto turns = Turns<kMostThreads / kWarp>(num_warps);
    for (int i = 0; i < num_warps; ++i) {
      while (RunWarp(turns[i])) {
        any = true;
        if (order == Order::kRandom) break;
      }
    }
  }
}

void RunBlock(int threads, size_t shared_bytes) {
  ++num_blocks;
  block = {.size = threads};
  warps.assign(threads / kWarp, Warp{.meeting = {.size = kWarp}, .given = {}});
  for (int t = 0; t < threads; ++t) {
    fibres[t].running = true;
    fibres[t].exchanges = 0;
    fibres[t].copies.clear();
  }
  auto* shared = reinterpret_cast<unsigned char*>(berth::ops::cuda::shared_memory);
  memset(shared, kPoison, shared_bytes);
  memset(shared + shared_bytes, kFence, kFenceBytes);
  races::BeginBlock(shared, shared_bytes);
  RunThreads(threads / kWarp);
  for (int t = 0; t < threads; ++t) {
    threadIdx.x = static_cast<unsigned>(t);
    if (fibres[t].running) Die("a barrier that not all threads reach");
  }
  for (size_t i = 0; i < kFenceBytes; ++i) {
    if (shared[shared_bytes + i] != kFence) Die("a write past the shared memory");
  }
}

// The place of block i in the order of the turns: in a random one, i times a number without common factors, and more.
int64_t Turn(int64_t i, int64_t blocks, int64_t factor, int64_t first) {
  if (order == Order::kRandom) return (i * factor + first) % blocks;
  return order == Order::kAscending ? i : blocks - 1 - i;
}

}  // namespace

void RunGrid(size_t shared_bytes, const std::function<void()>& thread) {
  const int threads = static_cast<int>(blockDim.x);
  if (threads > kMostThreads || threads % kWarp != 0) Die("a block of a size that is no whole number of warps");
  if (shared_bytes > kMostSharedBytes) Die("too much shared memory");
  const DeviceAccess access;
  ++num_launches;
  CreateFibres(threads);
  body = &thread;
  races::BeginLaunch();
  const int64_t blocks = int64_t{gridDim.x} * gridDim.y * gridDim.z;
  int64_t factor = 1;
  int64_t first = 0;
  if (order == Order::kRandom) {
    do factor = 1 + RandomBelow(1u << 16);
    while (std::gcd(factor, blocks) != 1);
    first = RandomBelow(1u << 16);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t b = Turn(i, blocks, factor, first);
    blockIdx = dim3(static_cast<unsigned>(b % gridDim.x), static_cast<unsigned>(b / gridDim.x % gridDim.y),
                    static_cast<unsigned>(b / gridDim.x / gridDim.y));
    RunBlock(threads, shared_bytes);
  }
}

}  // namespace cuda_emulation
