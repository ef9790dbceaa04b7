#include "models/step/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

namespace berth {
namespace {

// Sleeps until woken while `word` is `value`; may wake for no reason.
void Sleep(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

constexpr int64_t kLineBytes = 64;
constexpr int64_t kPieceBytes = 4096;  // of what is read ahead, that one worker asks for before the next

// Leaves the core's other thread, if it has one, its units.
void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  static_assert(sizeof(last_call_) == sizeof(uint32_t) && decltype(last_call_)::is_always_lock_free);
  workers_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { Loop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  last_call_.fetch_add(1);
  WakeAll(&last_call_);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Call(absl::FunctionRef<void(int)> work, int thread) {
  try {
    work(thread);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

void ThreadPool::Run(absl::FunctionRef<void(int)> work) {
  const uint32_t call = last_call_.load(std::memory_order_relaxed) + 1;
  work_ = &work;
  offer_.store(uint64_t{call} << 32, std::memory_order_release);
  // Sequentially consistent, like sleepers_: a worker that the next line does not see there will see the call.
  last_call_.store(call);
  if (sleepers_.load() > 0) WakeAll(&last_call_);
  Call(work, 0);
  offer_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (int64_t pauses = 0; (offer_.load(std::memory_order_acquire) & kBegun) != 0; ++pauses) {
    // One that is not done by now may have lost its core to others.
    constexpr int64_t kPauses = 10000;
    if (pauses < kPauses) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (failed_.load()) {
    failed_ = false;
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void ThreadPool::ReadAhead(const char* begin, int64_t size_bytes) {
  ahead_bytes_.store(std::min(size_bytes, kReadAheadBytes), std::memory_order_relaxed);
  ahead_.store(begin, std::memory_order_release);
}

uint32_t ThreadPool::AwaitCallAfter(uint32_t seen, int thread, Reading* reading) {
  constexpr int kPausesBetweenLooks = 32;
  uint32_t call = seen;
  const auto come = [&] { return (call = last_call_.load(std::memory_order_acquire)) != seen; };
  const char* const begin = ahead_.load(std::memory_order_acquire);
  const int64_t end = ahead_bytes_.load(std::memory_order_relaxed);
  if (reading->begin != begin) *reading = {begin, (thread - 1) * kPieceBytes};
  const auto address = reinterpret_cast<uintptr_t>(begin);  // of bytes that need not be there
  for (int64_t& at = reading->asked; at < end; at += static_cast<int64_t>(workers_.size()) * kPieceBytes) {
    for (int64_t line = 0; line < kPieceBytes; line += kLineBytes) {
      if (come()) return call;
      __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<uintptr_t>(at + line)), 0, 2);
    }
  }
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < kLookOut;) {
    for (int i = 0; i < kPausesBetweenLooks; ++i) {
      if (come()) return call;
      Pause();
    }
  }
  sleepers_.fetch_add(1);
  while ((call = last_call_.load()) == seen) Sleep(&last_call_, seen);
  sleepers_.fetch_sub(1);
  return call;
}

void ThreadPool::Loop(int thread) {
  Reading reading;
  for (uint32_t seen = 0; !stop_.load();) {
    seen = AwaitCallAfter(seen, thread, &reading);
    uint64_t offer = offer_.load(std::memory_order_acquire);
    while (offer >> 32 == seen && (offer & kClosed) == 0) {
      if (!offer_.compare_exchange_weak(offer, offer + 1, std::memory_order_acq_rel)) continue;
      Call(*work_, thread);
      offer_.fetch_sub(1, std::memory_order_release);
      break;
    }
  }
}

}  // namespace berth
