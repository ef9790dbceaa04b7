// The state of a byte is three events: its last write, the reads since, and the atomic operations since. An event can
// stand for several accesses. It keeps the time of the last one, and a scope: how far apart the threads are that took
// part. The last access is enough. An earlier one that a barrier separates from it needs no record. One that no barrier
// separates from it needs the same barrier as the last one, and the scope tells its kind.
#include "tests/models/kernels/cuda_emulation/races.h"

#include <stdio.h>
#include <stdlib.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"

extern "C" const char __executable_start;  // the linker's

namespace cuda_emulation::races {
namespace {

constexpr int kWarp = 32;
constexpr uintptr_t kPageBytes = 4096;
constexpr size_t kMostPages = 1024;  // whose state is kept from launch to launch

enum class Scope : uint8_t { kThread, kWarp, kBlock, kLaunch, kUnderWay };

struct Event {
  Time time = 0;
  uint32_t code = 0;  // the instruction's address in the program
  uint16_t thread = 0;
  Scope scope = Scope::kThread;
};
struct Byte {
  Event write, reads, atomics;
};
using Page = std::array<Byte, kPageBytes>;

Time now = 1;
Time launch_began = 1;
Time block_began = 1;
Runner me = {.thread = -1};
void (*on_access)() = nullptr;
uintptr_t shared_begin = 0;
size_t shared_bytes = 0;
std::vector<Byte> shared(kMostSharedBytes);
std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
struct Found {
  uintptr_t number = 0;
  Page* page = nullptr;
};
std::array<Found, 256> found;  // the pages of the last accesses

Page& PageOf(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  Found& entry = found[number % found.size()];
  if (entry.page == nullptr || entry.number != number) {
    std::unique_ptr<Page>& page = pages[number];
    if (page == nullptr) page = std::make_unique<Page>();
    entry = {.number = number, .page = page.get()};
  }
  return *entry.page;
}

bool SharesWarp(const Event& event) { return event.thread / kWarp == me.thread / kWarp; }

// Whether all that the event stands for comes before what the thread does now.
template <bool kShared>
bool IsBefore(const Event& event) {
  if (event.time < (kShared ? block_began : launch_began)) return true;
  if (event.scope == Scope::kUnderWay) return false;
  if (event.time < block_began || event.scope == Scope::kLaunch) return false;
  if (event.time < *me.block_time) return true;
  if (event.scope == Scope::kBlock || !SharesWarp(event)) return false;
  return event.time < *me.warp_time || (event.scope == Scope::kThread && event.thread == me.thread);
}

template <bool kShared>
void Add(uint32_t code, Event* event) {
  Scope scope = Scope::kThread;
  if (!IsBefore<kShared>(*event)) {
    if (event->time < block_began || event->scope == Scope::kLaunch) {
      scope = Scope::kLaunch;
    } else {
      scope = event->scope == Scope::kBlock || !SharesWarp(*event) ? Scope::kBlock : Scope::kWarp;
    }
  }
  *event = {.time = now, .code = code, .thread = static_cast<uint16_t>(me.thread), .scope = scope};
}

const char* Verb(Access access) {
  return access == Access::kRead ? "reads" : access == Access::kWrite ? "writes" : "atomically changes";
}

[[noreturn]] void Die(const char* memory, uintptr_t at, Access access, uint32_t code, const char* what,
                      const Event& event) {
  fprintf(stderr, "CUDA emulation: a race: thread %d of block (%u, %u, %u) %s byte %#zx of %s, ", me.thread, blockIdx.x,
          blockIdx.y, blockIdx.z, Verb(access), static_cast<size_t>(at), memory);
  if (event.scope == Scope::kUnderWay) {
    fprintf(stderr, "which a copy of thread %u is still to fill", event.thread);
  } else if (event.time < block_began || event.scope == Scope::kLaunch) {
    fprintf(stderr, "which another block %s", what);
  } else {
    fprintf(stderr, "which thread %u %s, with no barrier between", event.thread, what);
  }
  fprintf(stderr, "; addr2line -Cfie PROGRAM 0x%x 0x%x\n", code, event.code);
  abort();
}

template <bool kShared>
void Visit(Access access, uintptr_t at, uint32_t code, Byte* byte) {
  const char* const memory = kShared ? "shared memory" : "device memory";
  if (!IsBefore<kShared>(byte->write)) Die(memory, at, access, code, "wrote", byte->write);
  if (access != Access::kRead && !IsBefore<kShared>(byte->reads)) Die(memory, at, access, code, "read", byte->reads);
  if (access != Access::kAtomic && !IsBefore<kShared>(byte->atomics)) {
    Die(memory, at, access, code, "atomically changed", byte->atomics);
  }
  if (access == Access::kRead) return Add<kShared>(code, &byte->reads);
  if (access == Access::kAtomic) return Add<kShared>(code, &byte->atomics);
  *byte = {
      .write = {.time = now, .code = code, .thread = static_cast<uint16_t>(me.thread)}, .reads = {}, .atomics = {}};
}

uint32_t CodeOf(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(&__executable_start));
}

bool IsIndex(uintptr_t address) {
  for (const dim3* index : {&threadIdx, &blockIdx, &blockDim, &gridDim}) {
    if (address - reinterpret_cast<uintptr_t>(index) < sizeof(dim3)) return true;
  }
  return false;
}

// Calls visit(address, its byte) for bytes that more than one thread can reach.
template <typename OnShared, typename OnGlobal>
void ForBytes(uintptr_t begin, size_t size_bytes, const OnShared& on_shared, const OnGlobal& on_global) {
  if (begin - me.stack < me.stack_bytes) return;
  if (begin - shared_begin < kMostSharedBytes) {
    const uintptr_t first = begin - shared_begin;
    if (first + size_bytes > shared_bytes) {
      fprintf(stderr, "CUDA emulation: thread %d uses byte %#zx of shared memory, of which it has %#zx\n", me.thread,
              static_cast<size_t>(first + size_bytes - 1), shared_bytes);
      abort();
    }
    for (uintptr_t i = first; i < first + size_bytes; ++i) on_shared(i, &shared[i]);
    return;
  }
  if (IsIndex(begin)) return;
  for (uintptr_t done = 0; done < size_bytes;) {
    Page& page = PageOf(begin + done);
    for (uintptr_t i = (begin + done) % kPageBytes; i < kPageBytes && done < size_bytes; ++i, ++done) {
      on_global(begin + done, &page[i]);
    }
  }
}

void Check(Access access, const void* p, size_t size_bytes, const void* code_address) {
  if (me.thread < 0) return;
  const uint32_t code = CodeOf(code_address);
  ForBytes(
      reinterpret_cast<uintptr_t>(p), size_bytes,
      [=](uintptr_t at, Byte* byte) { Visit</*kShared=*/true>(access, at, code, byte); },
      [=](uintptr_t at, Byte* byte) { Visit</*kShared=*/false>(access, at, code, byte); });
  if (on_access != nullptr) on_access();
}

}  // namespace

Time Advance() { return ++now; }

void BeginLaunch() {
  launch_began = block_began = Advance();
  if (pages.size() > kMostPages) {
    pages.clear();
    found.fill({});
  }
}

void BeginBlock(const void* begin, size_t size_bytes) {
  block_began = Advance();
  shared_begin = reinterpret_cast<uintptr_t>(begin);
  shared_bytes = size_bytes;
}

void Resume(const Runner& runner) { me = runner; }
void Suspend() { me.thread = -1; }
void SetOnAccess(void (*call)()) { on_access = call; }

void Note(Access access, const void* p, size_t size_bytes) {
  Check(access, p, size_bytes, __builtin_return_address(0));
}

void NoteCopyBegins(const void* p, size_t size_bytes) {
  Check(Access::kWrite, p, size_bytes, __builtin_return_address(0));
  const auto mark = [](uintptr_t, Byte* byte) { byte->write.scope = Scope::kUnderWay; };
  ForBytes(reinterpret_cast<uintptr_t>(p), size_bytes, mark, mark);
}

void NoteCopyEnds(const void* p, size_t size_bytes) {
  const auto mark = [](uintptr_t, Byte* byte) {
    byte->write.scope = Scope::kThread;
    byte->write.time = now;
  };
  ForBytes(reinterpret_cast<uintptr_t>(p), size_bytes, mark, mark);
}

}  // namespace cuda_emulation::races

// What the compiler calls.
using cuda_emulation::races::Access;
using cuda_emulation::races::Check;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

#define BERTH_HOOKS(size)                                                                                   \
  void __tsan_read##size(void* p) { Check(Access::kRead, p, size, __builtin_return_address(0)); }           \
  void __tsan_write##size(void* p) { Check(Access::kWrite, p, size, __builtin_return_address(0)); }         \
  void __tsan_unaligned_read##size(void* p) { Check(Access::kRead, p, size, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##size(void* p) { Check(Access::kWrite, p, size, __builtin_return_address(0)); }

BERTH_HOOKS(1)
BERTH_HOOKS(2)
BERTH_HOOKS(4)
BERTH_HOOKS(8)
BERTH_HOOKS(16)

void __tsan_read_range(void* p, unsigned long size) { Check(Access::kRead, p, size, __builtin_return_address(0)); }
void __tsan_write_range(void* p, unsigned long size) { Check(Access::kWrite, p, size, __builtin_return_address(0)); }

}  // extern "C"
