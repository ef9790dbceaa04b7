#include "scheduler/output/prompt_lookup.h"

#include <algorithm>

namespace berth {
namespace {

constexpr int64_t kLongestMatch = 3;
constexpr int64_t kShortestMatch = 2;
constexpr int64_t kSearchedTokens = 8192;  // so that a long sequence's steps stay short

}  // namespace

absl::Span<const int32_t> LookUpDraft(absl::Span<const int32_t> tokens, int64_t limit) {
  const int64_t size = static_cast<int64_t>(tokens.size());
  const int64_t oldest = std::max<int64_t>(0, size - kSearchedTokens);
  for (int64_t length = kLongestMatch; length >= kShortestMatch && limit > 0; --length) {
    for (int64_t at = size - length - 1; at >= oldest; --at) {
      if (!std::equal(tokens.begin() + at, tokens.begin() + at + length, tokens.end() - length)) continue;
      const int64_t next = at + length;
      return tokens.subspan(next, std::min(limit, size - next));
    }
  }
  return {};
}

}  // namespace berth
