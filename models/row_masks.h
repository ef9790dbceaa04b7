// The masks of one row of a step: which tokens its constraint allows. A worker computes them while the step runs.
// Thread-safe as follows: one thread fills them, then any thread may wait for them and read. Torch-free.
#ifndef BERTH_MODELS_ROW_MASKS_H_
#define BERTH_MODELS_ROW_MASKS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace berth {

class RowMasks {
 public:
  // Waits until the masks are computed, and returns them: one for the place of each draft, then one for the token after
  // the last. Each has num_words() words, one mask behind the other. Bit t % 32 of word t / 32 is set if token t may
  // come there. A mask without a bit: no token may.
  const uint32_t* Wait() const {
    done_.wait(0, std::memory_order_acquire);
    return words_.data();
  }
  int64_t num_words() const { return num_words_; }

  // Begins anew, and returns the words to fill. Allocates only if there were never as many. REQUIRES: no thread waits.
  absl::Span<uint32_t> Reset(int64_t num_masks, int64_t num_words) {
    done_.store(0, std::memory_order_relaxed);
    num_words_ = num_words;
    const size_t size = static_cast<size_t>(num_masks * num_words);
    if (words_.size() < size) words_.resize(size);
    return absl::MakeSpan(words_).first(size);
  }
  // Lets those that wait read.
  void SetDone() {
    done_.store(1, std::memory_order_release);
    done_.notify_all();
  }

 private:
  std::atomic<int32_t> done_{1};
  int64_t num_words_ = 0;
  std::vector<uint32_t> words_;
};

}  // namespace berth

#endif  // BERTH_MODELS_ROW_MASKS_H_
