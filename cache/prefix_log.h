// What changes in the prefix index, as records for a reader on another thread, which keeps a copy
// (cache/prefix_mirror.h). One writer, the engine's thread, and one reader. Neither waits for the other, and writing
// allocates nothing.
//
// Records lie in a ring of fixed size. When the reader falls behind and the ring is full, further records are lost. The
// reader hears of that, and asks for the whole again (Cache::WatchPrefixes).
#ifndef BERTH_CACHE_PREFIX_LOG_H_
#define BERTH_CACHE_PREFIX_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace berth {

class PrefixLog {
 public:
  enum class Kind : int32_t {
    kNode,      // a node is there: `parent`, `tokens`
    kGrown,     // a node has new tokens, which begin with its former ones: `tokens`
    kGone,      // it is deleted, and holds nothing by then
    kUnit,      // it holds a unit of a KV group: `number`
    kUnitGone,  // no longer
    kState,     // it holds states after its tokens and `tokens`; `number` is theirs
    kStateGone,
  };
  struct Record {
    Kind kind = Kind::kNode;
    uint64_t node = 0;
    uint64_t parent = 0;  // 0: the node is a root
    int32_t number = 0;
    absl::Span<const int32_t> tokens;
  };

  // REQUIRES: `num_words` is a power of two.
  explicit PrefixLog(size_t num_words) : ring_(num_words) {}

  // The writer's. Append has an effect for the reader from the next Publish on.
  void Append(const Record& record);
  void Publish();
  // Takes records again after some were lost.
  void Restart() { full_ = false; }

  // The reader's. Replaces `words` by what was published since the last call. Returns false if records were lost
  // since: those of `words` may have gaps.
  bool Take(std::vector<int32_t>* words);
  // Waits until Wake has been called more than `seen` times; num_wakes() says how often that was. Publish calls it.
  void Wait(uint32_t seen) const { wakes_.wait(seen, std::memory_order_acquire); }
  uint32_t num_wakes() const { return wakes_.load(std::memory_order_acquire); }
  // Thread-safe.
  void Wake();

  // Writes a record to a vector, in the form that the log has.
  static void Write(const Record& record, std::vector<int32_t>* words);
  // Removes the first record from `words`. REQUIRES: they are not empty.
  static Record Read(absl::Span<const int32_t>* words);

 private:
  // A record is its number of words, the kind, two words each for the node and its parent, the number, and the tokens.
  static constexpr size_t kHeaderWords = 7;
  static void WriteHeader(const Record& record, int32_t* words);

  std::vector<int32_t> ring_;
  // Words since the start; the place in the ring is the remainder.
  std::atomic<uint64_t> begin_{0};  // read
  std::atomic<uint64_t> end_{0};    // published
  std::atomic<uint64_t> losses_{0};
  std::atomic<uint32_t> wakes_{0};
  // The writer's.
  uint64_t written_ = 0;
  uint64_t num_losses_ = 0;
  bool full_ = false;
  // The reader's.
  uint64_t seen_losses_ = 0;
};

}  // namespace berth

#endif  // BERTH_CACHE_PREFIX_LOG_H_
