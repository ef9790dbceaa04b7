// Finds races of emulated CUDA kernels, in whatever order their threads run.
//
// Kernels are compiled with -fsanitize=thread, so that each access to memory calls a hook: __tsan_read4 and the like.
// These hooks are ours (races.cc); the sanitizer's own library is not linked. For each byte they keep who wrote it last
// and who has read it since, and when: time is a count of barriers that have ended. Two accesses of different threads,
// one of them a write, are a race unless a barrier of their block, or of their warp if they share one, lies between. No
// barrier lies between two blocks of a launch. A race ends the program with a message. Single-threaded.
//
// Atomic operations do not race with each other. They order nothing: a kernel whose last block reads what the others
// wrote, by a counter and __threadfence, is refused.
#ifndef BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_RACES_H_
#define BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_RACES_H_

#include <stddef.h>
#include <stdint.h>

namespace cuda_emulation::races {

enum class Access { kRead, kWrite, kAtomic };

// Barriers that have ended, of all blocks together.
using Time = uint32_t;
// Returns the time after a barrier that ends now.
Time Advance();

void BeginLaunch();
// Shared memory holds `size_bytes` bytes from `shared` on.
void BeginBlock(const void* shared, size_t size_bytes);

// The thread of the block that runs from now on, its stack, and when its block's and its warp's last barriers ended;
// these are read at each access.
struct Runner {
  int thread;
  uintptr_t stack, stack_bytes;
  const Time* block_time;
  const Time* warp_time;
};
void Resume(const Runner& runner);
// No thread runs: accesses are the host's.
void Suspend();

// What the thread does to memory without a hook of the compiler's.
void Note(Access access, const void* p, size_t size_bytes);
// A copy to `p` is under way: until it is complete, any use of these bytes is a race.
void NoteCopyBegins(const void* p, size_t size_bytes);
void NoteCopyEnds(const void* p, size_t size_bytes);

// Called at each access of an emulated thread; for the scheduler. Null: nothing.
void SetOnAccess(void (*on_access)());

}  // namespace cuda_emulation::races

#endif  // BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_RACES_H_
