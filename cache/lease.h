// A sequence's place in the cache: its block table in each KV pool, its state unit, and the blocks of a fixed number of
// encoder tokens where the model has cross-attention. Giving it up (by destruction)
// returns every unit at once, so a cancelled or failed request cannot leak. Move-only. Engine thread only.
//
// Contract with the kernels: tokens [0, num_tokens()) have a place; the kernel writes the new ones. A state is read
// only when the step's start is > 0: start == 0 *means* zero state, so nothing is cleared on reuse. Cross blocks come
// with the first growth, all at once, and are written once, in the step that follows.
#ifndef BERTH_CACHE_LEASE_H_
#define BERTH_CACHE_LEASE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace berth {

class Cache;

// Blocks of one KV or cross group: absolute block b (tokens [b * block_tokens, (b + 1) * block_tokens)) lies at byte
// `offsets[b - first_block]` of the arena. Blocks before first_block have left the window.
struct BlockTable {
  int64_t first_block = 0;
  absl::Span<const int64_t> offsets;
};

class SequenceLease {
 public:
  // A lease of nothing. Only assignment and destruction are allowed.
  SequenceLease() = default;
  ~SequenceLease() { Release(); }
  SequenceLease(SequenceLease&& other) noexcept;
  SequenceLease& operator=(SequenceLease&& other) noexcept;
  SequenceLease(const SequenceLease&) = delete;
  SequenceLease& operator=(const SequenceLease&) = delete;

  // Makes room for the next `n` tokens in every group and, in windowed groups, gives back the blocks that no query at
  // position >= num_tokens() can see. All or nothing: RESOURCE_EXHAUSTED leaves the lease as it was.
  // REQUIRES: n > 0.
  absl::Status Grow(int64_t n);

  // Drops the cache of tokens from position `length` on, and returns the position r <= length from which the caller
  // must replay: r == length where every group still holds what tokens >= length need to see; 0 where a recurrent state
  // or a window's lost head cannot be wound back. Afterwards num_tokens() == r. Cross blocks stay, whatever r: they
  // hold nothing of these tokens. REQUIRES: 0 <= length <= num_tokens().
  int64_t Crop(int64_t length);

  // Returns every unit. The lease is empty (num_tokens() == 0) and may grow again.
  void Reset();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_cross_tokens() const { return num_cross_tokens_; }
  uint64_t generation() const { return generation_; }
  BlockTable blocks(int group) const;
  // Byte offset of the sequence's unit in a state group. REQUIRES: num_tokens() > 0.
  int64_t state_unit(int group) const { return groups_[group].units[0]; }

 private:
  friend class Cache;
  struct Group {
    int64_t first_block = 0;
    std::vector<int64_t> units;  // byte offsets; one entry for a state group
  };

  SequenceLease(Cache* cache, uint64_t generation, int64_t num_cross_tokens);
  void Release();
  // First block that a query at `position` or later can see in group `g`.
  int64_t FirstVisibleBlock(int g, int64_t position) const;
  // Units that group `g` must end with to hold tokens [0, num_tokens); of a cross group, those of the encoder's tokens.
  int64_t EndUnit(int g, int64_t num_tokens) const;
  // Gives back the first, or the last, `count` units of group `g`.
  void FreeHead(int g, int64_t count);
  void FreeTail(int g, int64_t count);
  // Tokens that group `g` holds for the sequence; 1 for a state.
  int64_t TokensIn(int g) const;

  Cache* cache_ = nullptr;
  uint64_t generation_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_cross_tokens_ = 0;
  std::vector<Group> groups_;
};

}  // namespace berth

#endif  // BERTH_CACHE_LEASE_H_
