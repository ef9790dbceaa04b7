// The memory of a step's tensors on the CPU. ATen asks for dozens of buffers a step and returns them. From malloc, the
// large ones would go back to the system each time, and the system clears every page that it hands out again.
// StepMemory keeps what a step returned for the next: once steps of a size have run, they take no memory from the
// system.
#ifndef BERTH_MODELS_STEP_STEP_MEMORY_H_
#define BERTH_MODELS_STEP_STEP_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace berth {

// One thread at a time, the one that it is used on.
class StepMemory {
 public:
  StepMemory();
  ~StepMemory();  // buffers that are still held then are freed by who holds them
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  int64_t kept_bytes() const { return kept_bytes_; }            // of buffers that no tensor holds
  int64_t num_allocations() const { return num_allocations_; }  // what was taken from the system, ever

  // For the allocator that ATen is given; memory of `size` bytes or more, aligned to 64, and back.
  void* Take(size_t size);
  static void* TakeOutside(size_t size);  // where no step runs
  static void Return(void* memory);

 private:
  struct Buffer;
  static constexpr int kClasses = 160;

  std::array<Buffer*, kClasses> kept_ = {};  // by size; each the head of a list
  int64_t kept_bytes_ = 0;
  int64_t num_allocations_ = 0;
};

// While it lives, this thread's new tensors take their memory from `memory`. What such a tensor returns later, or on
// another thread, is freed.
//
// This is the one piece of step state that is not an argument. ATen asks its allocator for bytes without saying who
// needs them, so the allocator finds the memory in a thread-local variable.
class ScopedStepMemory {
 public:
  explicit ScopedStepMemory(StepMemory* memory);
  ~ScopedStepMemory();
  ScopedStepMemory(const ScopedStepMemory&) = delete;
  ScopedStepMemory& operator=(const ScopedStepMemory&) = delete;

 private:
  StepMemory* const before_;
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_STEP_MEMORY_H_
