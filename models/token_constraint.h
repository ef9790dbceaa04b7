// Decides which tokens may follow the output of a sequence. One object for each sequence and each beam.
// Thread-compatible: one thread at a time, except that several may Clone the same object. Torch-free.
//
// Where only one text can follow, the mask has one bit: that of the first token of this text. So an output that takes
// forced tokens at once equals one that is masked token by token.
#ifndef BERTH_MODELS_TOKEN_CONSTRAINT_H_
#define BERTH_MODELS_TOKEN_CONSTRAINT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace berth {

// Words of 32 bits in the mask of a vocabulary.
inline constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Returns a copy at the same position.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;

  // Writes drafts.size() + 1 masks of MaskWords(vocab_size) words, one behind the other. Mask i is of the token that
  // follows the first i drafts. Bit t % 32 of word t / 32 is set if token t may come there. End tokens are set exactly
  // where the output may end. The position does not change.
  // REQUIRES: CountAllowed(drafts) == drafts.size(). An error ends this sequence alone: no token may come (a dead end),
  // or the parser reached a limit.
  virtual absl::Status FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks) = 0;

  // Moves past `token`. REQUIRES: the mask allows it.
  virtual absl::Status Accept(int32_t token) = 0;

  // Returns how many of `tokens`, from the first on, may come next one after the other.
  virtual int64_t CountAllowed(absl::Span<const int32_t> tokens) = 0;

  // Appends the tokens that have to come next, at most `limit`, until there is more than one continuation. The position
  // does not change.
  virtual absl::Status AppendForced(int64_t limit, std::vector<int32_t>* tokens) = 0;

  // Returns whether nothing but the end may come, because the text has all its bytes. Where more bytes may follow, but
  // no token spells them, only the mask says so.
  virtual bool IsComplete() = 0;
};

}  // namespace berth

#endif  // BERTH_MODELS_TOKEN_CONSTRAINT_H_
