// Counts the bytes of messages that clients have not taken yet, over all requests, against one limit. Thread-safe.
#ifndef BERTH_SERVER_DELIVERY_UNDELIVERED_H_
#define BERTH_SERVER_DELIVERY_UNDELIVERED_H_

#include <atomic>
#include <cstdint>

namespace berth {

// Messages that clients have not taken yet.
struct DeliveryLoad {
  int64_t bytes = 0;        // gauge
  int64_t limit_bytes = 0;  // gauge
  int64_t ended = 0;        // requests ended because their clients did not read; counted since the start
};

class Undelivered {
 public:
  explicit Undelivered(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Negative: delivered or dropped.
  void Add(int64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  bool full() const { return bytes_.load(std::memory_order_relaxed) > limit_bytes_; }
  // A request was ended because its client does not read.
  void CountEnded() { ended_.fetch_add(1, std::memory_order_relaxed); }

  DeliveryLoad load() const {
    return {.bytes = bytes_.load(std::memory_order_relaxed),
            .limit_bytes = limit_bytes_,
            .ended = ended_.load(std::memory_order_relaxed)};
  }

 private:
  const int64_t limit_bytes_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> ended_{0};
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_UNDELIVERED_H_
