// Where the engine's thread is in its step, or the main thread in the server's start, for a watchdog on another thread.
// The engine's thread writes; any thread reads, without a lock. A reading is not of one moment; only `beat` decides
// whether there was progress.
#ifndef BERTH_SCHEDULER_LOAD_STEP_PROGRESS_H_
#define BERTH_SCHEDULER_LOAD_STEP_PROGRESS_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace berth {

enum class StepPhase : uint8_t {
  kIdle,     // waits for work; may take as long as it likes
  kPlan,     // chooses what to compute, starts copies
  kRun,      // the model computes
  kCopy,     // waits for the step's copies to end
  kCommit,   // takes in the results, saves
  kDeliver,  // publishes the load, hands the tokens over
  kStart,    // no step: the server starts
};

inline const char* StepPhaseName(StepPhase phase) {
  constexpr const char* kNames[] = {"idle", "plan", "run", "copy", "commit", "deliver", "start"};
  return kNames[static_cast<int>(phase)];
}

class StepProgress {
 public:
  struct Reading {
    uint64_t beat = 0;  // grows with each phase
    StepPhase phase = StepPhase::kIdle;
    int64_t num_rows = 0;  // of the newest plan
    int64_t num_tokens = 0;
    pid_t thread = 0;  // kernel's id of the watched thread; 0: it has not started
  };

  // The calling thread is the one that is watched.
  void SetThread() { thread_.store(gettid(), std::memory_order_relaxed); }
  void SetPlan(int64_t num_rows, int64_t num_tokens) {
    num_rows_.store(num_rows, std::memory_order_relaxed);
    num_tokens_.store(num_tokens, std::memory_order_relaxed);
  }
  void Enter(StepPhase phase) {
    phase_.store(phase, std::memory_order_relaxed);
    beat_.store(beat_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  Reading Read() const {
    Reading reading;
    reading.beat = beat_.load(std::memory_order_acquire);
    reading.phase = phase_.load(std::memory_order_relaxed);
    reading.num_rows = num_rows_.load(std::memory_order_relaxed);
    reading.num_tokens = num_tokens_.load(std::memory_order_relaxed);
    reading.thread = thread_.load(std::memory_order_relaxed);
    return reading;
  }

 private:
  std::atomic<uint64_t> beat_{0};
  std::atomic<StepPhase> phase_{StepPhase::kIdle};
  std::atomic<int64_t> num_rows_{0};
  std::atomic<int64_t> num_tokens_{0};
  std::atomic<pid_t> thread_{0};
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_STEP_PROGRESS_H_
