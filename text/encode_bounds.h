// Bounds of the work on one text. Plain data.
#ifndef BERTH_TEXT_ENCODE_BOUNDS_H_
#define BERTH_TEXT_ENCODE_BOUNDS_H_

#include <cstdint>
#include <functional>

namespace berth {

// Says whether the work on a text is to stop. Empty: never.
using StopCheck = std::function<bool()>;

struct EncodeBounds {
  int64_t max_tokens = 0;  // a text with more of them is an error; 0: no limit
  StopCheck stop;          // asked before each word, which is what the pre-tokenizer leaves whole
};

}  // namespace berth

#endif  // BERTH_TEXT_ENCODE_BOUNDS_H_
