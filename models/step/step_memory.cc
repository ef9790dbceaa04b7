#include "models/step/step_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

namespace berth {
namespace {

thread_local StepMemory* current = nullptr;

constexpr size_t kAlignment = 64;
constexpr int kStepsOfOctave = 4;
constexpr int kLargerClasses = 2 * kStepsOfOctave;

// Sizes grow by a quarter to a fifth from class to class, from kAlignment on.
size_t SizeOf(int size_class) {
  return (kAlignment << (size_class / kStepsOfOctave)) / kStepsOfOctave *
         (kStepsOfOctave + size_class % kStepsOfOctave);
}

// The smallest class of at least `size` bytes.
int ClassOf(size_t size) {
  if (size <= kAlignment) return 0;
  const int octave = std::bit_width((size - 1) / kAlignment) - 1;
  const size_t step = (kAlignment << octave) / kStepsOfOctave;
  return octave * kStepsOfOctave + static_cast<int>((size - (kAlignment << octave) + step - 1) / step);
}

// What ATen asks for memory on the CPU: of the thread's StepMemory, or of the system where there is none. Some of
// ATen's products take memory without a tensor around it (raw_allocate) and return the address alone. So every buffer
// says where it came from.
class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &StepMemory::Return, c10::Device(c10::kCPU)};
    void* const memory = current == nullptr ? StepMemory::TakeOutside(size) : current->Take(size);
    return {memory, memory, &StepMemory::Return, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &StepMemory::Return; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

}  // namespace

// Stands before the bytes that are given out.
struct alignas(kAlignment) StepMemory::Buffer {
  StepMemory* owner;  // null: taken outside steps
  Buffer* next;
  int size_class;
};

StepMemory::StepMemory() {
  static const bool installed = [] {
    static Allocator allocator;
    c10::SetCPUAllocator(&allocator);
    return true;
  }();
  static_cast<void>(installed);
}

StepMemory::~StepMemory() {
  for (Buffer* list : kept_) {
    while (list != nullptr) std::free(std::exchange(list, list->next));
  }
}

void* StepMemory::Take(size_t size) {
  const int least = ClassOf(size);
  // A larger one is as good, so that what a long prefill left serves shorter ones.
  for (int size_class = least; size_class < std::min(least + kLargerClasses, kClasses); ++size_class) {
    Buffer* const buffer = kept_[size_class];
    if (buffer == nullptr) continue;
    kept_[size_class] = buffer->next;
    kept_bytes_ -= static_cast<int64_t>(SizeOf(size_class));
    return buffer + 1;
  }
  if (least >= kClasses) throw std::bad_alloc();
  const size_t rounded = (SizeOf(least) + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, sizeof(Buffer) + rounded);
  if (memory == nullptr) throw std::bad_alloc();
  ++num_allocations_;
  return new (memory) Buffer{this, nullptr, least} + 1;
}

void* StepMemory::TakeOutside(size_t size) {
  return new (c10::alloc_cpu(sizeof(Buffer) + size)) Buffer{nullptr, nullptr, 0} + 1;
}

void StepMemory::Return(void* memory) {
  if (memory == nullptr) return;
  Buffer* const buffer = static_cast<Buffer*>(memory) - 1;
  if (buffer->owner == nullptr) return c10::free_cpu(buffer);
  if (current == nullptr || current != buffer->owner) return std::free(buffer);
  Buffer*& list = current->kept_[buffer->size_class];
  buffer->next = list;
  list = buffer;
  current->kept_bytes_ += static_cast<int64_t>(SizeOf(buffer->size_class));
}

ScopedStepMemory::ScopedStepMemory(StepMemory* memory) : before_(std::exchange(current, memory)) {}
ScopedStepMemory::~ScopedStepMemory() { current = before_; }

}  // namespace berth
