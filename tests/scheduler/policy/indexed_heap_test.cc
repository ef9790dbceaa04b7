#include "scheduler/policy/indexed_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace berth {
namespace {

struct Item {
  int value = 0;
  size_t place = ~size_t{0};
};
struct ItemTraits {
  static size_t& Place(Item& item) { return item.place; }
  static bool Less(const Item& a, const Item& b) { return a.value < b.value; }
};

TEST(IndexedHeap, KeepsTheLeastFirstWhateverChanges) {
  std::mt19937 random(1);
  std::vector<Item> items(50);
  IndexedHeap<Item, ItemTraits> heap;
  std::vector<Item*> inside;
  for (int i = 0; i < 20000; ++i) {
    Item& item = items[random() % items.size()];
    const int value = static_cast<int>(random() % 30);
    if (item.place == heap.kOut) {
      item.value = value;
      heap.Push(&item);
      inside.push_back(&item);
    } else if (random() % 2 == 0) {
      item.value = value;
      heap.Update(&item);
    } else {
      heap.Remove(&item);
      inside.erase(std::find(inside.begin(), inside.end(), &item));
      EXPECT_EQ(item.place, heap.kOut);
    }
    ASSERT_EQ(heap.size(), inside.size());
    ASSERT_EQ(heap.empty(), inside.empty());
    if (inside.empty()) continue;
    const auto less = [](const Item* a, const Item* b) { return a->value < b->value; };
    ASSERT_EQ(heap.top()->value, (*std::min_element(inside.begin(), inside.end(), less))->value);
  }
}

}  // namespace
}  // namespace berth
