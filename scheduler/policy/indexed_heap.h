// A binary heap of pointers, the least first, from which any element can be removed: each element keeps its place in
// the heap. Pushing allocates now and then, nothing else does. Thread-compatible.
#ifndef BERTH_SCHEDULER_POLICY_INDEXED_HEAP_H_
#define BERTH_SCHEDULER_POLICY_INDEXED_HEAP_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace berth {

// Traits has two static functions. Place(T&) returns a reference to the element's place, which is kOut while it is in
// no heap. Less(const T&, const T&) orders the elements; after a change of their order, call Update.
template <typename T, typename Traits>
class IndexedHeap {
 public:
  static constexpr size_t kOut = ~size_t{0};

  bool empty() const { return elements_.empty(); }
  size_t size() const { return elements_.size(); }
  // In no order.
  const std::vector<T*>& elements() const { return elements_; }
  // REQUIRES: !empty().
  T* top() const { return elements_[0]; }

  // REQUIRES: the element is in no heap with these traits.
  void Push(T* element) {
    elements_.push_back(element);
    Up(elements_.size() - 1);
  }
  // REQUIRES, as for Update: the element is in this heap.
  void Remove(T* element) {
    const size_t place = std::exchange(Traits::Place(*element), kOut);
    T* const last = elements_.back();
    elements_.pop_back();
    if (last == element) return;
    elements_[place] = last;
    Traits::Place(*last) = place;
    Update(last);
  }
  void Update(T* element) {
    Up(Traits::Place(*element));
    Down(Traits::Place(*element));
  }

 private:
  void Put(size_t place, T* element) {
    elements_[place] = element;
    Traits::Place(*element) = place;
  }
  void Up(size_t place) {
    T* const element = elements_[place];
    while (place > 0 && Traits::Less(*element, *elements_[(place - 1) / 2])) {
      Put(place, elements_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    Put(place, element);
  }
  void Down(size_t place) {
    T* const element = elements_[place];
    while (2 * place + 1 < elements_.size()) {
      size_t child = 2 * place + 1;
      if (child + 1 < elements_.size() && Traits::Less(*elements_[child + 1], *elements_[child])) ++child;
      if (!Traits::Less(*elements_[child], *element)) break;
      Put(place, elements_[child]);
      place = child;
    }
    Put(place, element);
  }

  std::vector<T*> elements_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_POLICY_INDEXED_HEAP_H_
