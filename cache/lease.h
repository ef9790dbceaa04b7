// A sequence's place in the cache: its block table in each KV pool and its state unit. With cross-attention, it also
// has the blocks of a fixed number of encoder tokens. Destroying a lease returns all its units, so a cancelled or
// failed request cannot leak. Move-only. Engine thread only.
//
// Contract with the kernels: tokens [0, num_tokens()) have a place, and the kernel writes the new ones. A state is read
// only if the step's start is > 0: start == 0 *means* zero state, so nothing is cleared on reuse. Cross blocks come
// with the first growth, all at once, and are written once, in the step that follows.
//
// A lease of 10 tokens, with blocks of 4 and a window of 4, after the step that computed token 9. A letter is a unit:
//
//   token       | 0 1 2 3 | 4 5 6 7 | 8 9     |
//   static      |    a    |    b    |    c    |   GrowFor appends units, and Crop drops them from the end
//   sliding     | expired |    d    |    e    |   GrowFor also drops what the window has passed
//   recurrent   |              s              |   the states after 10 tokens; each step writes them in place
//   snapshots_  |         r         |             the states after 8 tokens; Crop(8) puts r in the place of s
//   index     root_ --> {a, x} --> {b, d}        Publish adds units to the tree, and Adopt lists them in a new lease
//                                  ^ cursor_
//
// A dropped unit is free once nothing else holds it: x was the block that expired, and the index still has it. Forks of
// the sequence share units too. Growing copies only the units that the step would write and that another holder still
// reads. So the growth past 8 tokens copied r to s.
//
// With quantised checkpoints (CachePlan::checkpoint_group), the index keeps quantised copies instead of state units. A
// lease that starts from one, by Adopt or from a tier, holds it in place of its states. The next growth expands it into
// a state unit. So a lease's own states are never rounded, and its state snapshots restore exactly the states that it
// had.
#ifndef BERTH_CACHE_LEASE_H_
#define BERTH_CACHE_LEASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/prefix_index.h"
#include "cache/snapshot.h"
#include "cache/unit_pool.h"

namespace berth {

class Cache;

// Blocks of one KV or cross group; block b holds tokens [b * block_tokens, (b + 1) * block_tokens). The first
// `sink_blocks` stay. The next `expired_blocks` have expired: the window has passed them.
//
//   block    0     1 |   2     3     4 |   5     6     7      sink_blocks = 2, expired_blocks = 3
//          sinks     |     expired     |  in the window
//   offsets  0     1                       2     3     4      At(5) == offsets[2]
struct BlockTable {
  int64_t sink_blocks = 0;
  int64_t expired_blocks = 0;
  absl::Span<const int64_t> offsets;  // byte offsets in the arena, of the blocks that are held

  // REQUIRES: block `b` is held.
  int64_t At(int64_t b) const { return offsets[b < sink_blocks ? b : b - expired_blocks]; }
};

// Where a step puts a copy of the states that a sequence has after its first `position` tokens.
struct StateMark {
  int64_t position = 0;
  UnitId unit;         // of the state group
  int64_t offset = 0;  // its byte in the arena
};

// The result of Adopt.
struct PrefixHit {
  int64_t num_tokens = 0;      // tokens that the lease now holds
  int64_t matched_tokens = 0;  // tokens that the index knows; those past num_tokens are replayed from the state
};

class SequenceLease {
 public:
  // A lease of no cache. Only assignment and destruction are allowed.
  SequenceLease() = default;
  ~SequenceLease() { Release(); }
  SequenceLease(SequenceLease&& other) noexcept;
  SequenceLease& operator=(SequenceLease&& other) noexcept;
  SequenceLease(const SequenceLease&) = delete;
  SequenceLease& operator=(const SequenceLease&) = delete;

  // Makes room for the next `n` tokens in every group. In windowed groups, returns the blocks that no query at position
  // >= num_tokens() sees. All or nothing: RESOURCE_EXHAUSTED leaves the lease's tokens as they were. REQUIRES: n > 0.
  absl::Status Grow(int64_t n) { return GrowFor(n, num_tokens_); }
  // Does this for a lease that has already grown for this step, whose queries start at `first_query`. keep_snapshots:
  // takes no room from the lease's own state snapshots.
  absl::Status GrowFor(int64_t n, int64_t first_query, bool keep_snapshots = false);

  // Drops the cache of tokens from position `length` on. Returns the position r <= length from which the caller must
  // replay. r == length if every group still holds what tokens >= length see. Else r is the position of the latest
  // state snapshot that serves, or 0. Afterwards num_tokens() == r. Cross blocks stay: they hold none of these tokens.
  // REQUIRES: 0 <= length <= num_tokens().
  int64_t Crop(int64_t length);

  // Keeps the states at num_tokens(), so that Crop can return to them. Drops the oldest state snapshots beyond `keep`;
  // with 0, keeps none. Does nothing for a model without states. Costs the copy of a unit when the lease grows.
  void SnapshotStates(int64_t keep);

  // Returns whether states allow Crop(position) to return `position`.
  bool CanCropTo(int64_t position) const;

  // Returns a snapshot of all that later tokens can see, for Cache::Restore, without the lease's own state snapshots.
  // Its bytes are undefined until Save has copied all of them out of the arena, bytes [from, to) at a time. The lease
  // must not change meanwhile. REQUIRES: the step that computed the lease's tokens is done.
  CacheSnapshot NewSnapshot() const;
  void Save(int64_t from, int64_t to, CacheSnapshot* snapshot) const;
  // Adds where those bytes come from and go to, without copying; valid until a unit moves. Expands a checkpoint at
  // once.
  void LocateSaved(int64_t from, int64_t to, CacheSnapshot* snapshot, std::vector<SnapshotSpan>* spans) const;
  // Returns NewSnapshot() with its bytes; an empty snapshot if the arena's device failed.
  CacheSnapshot Save() const;
  // Copies bytes [from, to) of the lease's own bytes into the arena, in the order of the snapshot that it was reserved
  // for. `snapshot` may be of more tokens than the lease (see SnapshotServes). REQUIRES: the lease is as Cache::Reserve
  // returned it.
  void Load(const CacheSnapshot& snapshot, int64_t from, int64_t to);
  // Adds where those bytes come from and go to, without copying; valid until a unit moves.
  void Locate(const CacheSnapshot& snapshot, int64_t from, int64_t to, std::vector<SnapshotSpan>* spans) const;
  // The size of the lease's snapshot.
  int64_t snapshot_bytes() const;
  // Bytes of the units that its tokens hold, without those of state snapshots and marks. Shared ones count for each
  // holder.
  int64_t held_bytes() const;

  // Returns another lease of the same tokens. The two share every unit until one of them writes it. Never fails.
  SequenceLease Fork();

  // Shares the longest prefix of `tokens` that the index holds under `salt`. Its length is a multiple of `multiple` and
  // at most tokens.size() - 1. From now on Publish has an effect. REQUIRES: the lease is empty and has no encoder
  // tokens.
  PrefixHit Adopt(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t multiple = 1);
  // Shares no prefix, but gives Publish an effect from now on, under `salt`. REQUIRES: !shares().
  void Share(absl::string_view salt);
  // Has the next step copy the states after `position` tokens to a unit of their own, for Publish. Returns false if
  // there are too few bytes that no lease holds, or if the index keeps no states. REQUIRES: the lease shares, has grown
  // for the step, and `position` is within the step's tokens, past the last mark.
  bool MarkStates(int64_t position);
  absl::Span<const StateMark> marks() const { return marks_; }  // by position, ascending
  // Tells the index which whole blocks the lease holds, and which states are at its marks; with `checkpoint`, also its
  // last block and its states. Drops the marks. Does nothing else unless Adopt or Share was called. Quantised states
  // take bytes that no lease holds; if there are too few, the index does not get them. REQUIRES: the step that computed
  // them is done, and `tokens` starts with the lease's.
  void Publish(absl::Span<const int32_t> tokens, bool checkpoint);
  // Returns whether Publish has an effect.
  bool shares() const { return root_ != nullptr; }
  void StopSharing();
  // Removes from the index all cache of this sequence's tokens, whichever sequence computed it, because some of it is
  // wrong. `tokens` starts with the lease's.
  void Withdraw(absl::Span<const int32_t> tokens);

  // Returns every unit. The lease is empty (num_tokens() == 0) and may grow again.
  void Reset();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_cross_tokens() const { return num_cross_tokens_; }
  uint64_t generation() const { return generation_; }
  BlockTable blocks(int group) const {
    return {.sink_blocks = SinkBlocks(group),
            .expired_blocks = groups_[group].expired_blocks,
            .offsets = groups_[group].offsets};
  }
  // Returns the byte offset of the sequence's state unit. REQUIRES: the lease has grown since Adopt, Reserve or Crop.
  int64_t state_unit(int group) const { return groups_[group].offsets[0]; }

 private:
  friend class Cache;
  struct Group {
    int64_t expired_blocks = 0;
    std::vector<UnitId> units;     // in the order of BlockTable's offsets; at most one in a group of states
    std::vector<int64_t> offsets;  // of the units
    bool tail_shared = false;      // another holder may read what the next step writes in the last unit
  };
  struct StateSnapshot {
    int64_t position = 0;
    int group = 0;  // of the states, or of checkpoints
    UnitId unit;
  };

  SequenceLease(Cache* cache, uint64_t generation, int64_t num_cross_tokens);
  void Release();
  // KvSpec's methods of these names, for group `g`.
  int64_t SinkBlocks(int g) const;
  int64_t ExpiredBlocks(int g, int64_t position) const;
  // The number of units, expired ones included, that group `g` needs for tokens [0, num_tokens). A cross group needs
  // those of the encoder's tokens. The group of checkpoints needs none once the lease has grown.
  int64_t EndUnit(int g, int64_t num_tokens) const;
  // Whether the next step writes into the last unit of group `g` while another holder reads it.
  bool MustCopy(int g) const;
  void CopyTail(int g);
  // Notes that another holder may read what the next step writes in the last unit of group `g`.
  void ShareTail(int g);
  // Sets how far the lease can grow without gaining or losing a unit. REQUIRES: it has grown for queries from
  // `first_query` on.
  void Settle(int64_t first_query);
  // The group in which the lease holds its states: the state group or the checkpoint group; -1: it holds none.
  int HeldStateGroup() const;
  bool HoldsCheckpoint() const;
  // Bytes of its checkpoint; 0 if another lease holds it too.
  int64_t OwnCheckpointBytes() const;
  // Drops the checkpoint and returns the states that it expands to.
  std::unique_ptr<std::byte[]> TakeCheckpoint();
  // Writes `states`, or if null those of the held checkpoint, into the lease's new state unit.
  void ExpandCheckpoint(std::unique_ptr<std::byte[]> states);
  // Tells the index of the first `count` blocks.
  void PublishBlocks(absl::Span<const int32_t> tokens, int64_t count);
  // Adds the states after cursor_'s tokens and `rest` to the index. Unit `unit` of group `group` holds them.
  void PublishStates(absl::Span<const int32_t> rest, int group, UnitId unit);
  void DropMarks();
  // Bytes of the blocks that no query at `position` or later sees and that no other lease holds.
  int64_t ExpiringBytes(int64_t position) const;
  // Removes from the index the tails that only the index shares, so that they need no copy. Removes a held checkpoint
  // too, so that it can be freed.
  void UncacheTails();
  void Append(int g, UnitId unit);
  // Returns `count` units of group `g`: the first after its sinks, or the last.
  void FreeHead(int g, int64_t count);
  void FreeTail(int g, int64_t count);
  void DropSnapshotsAfter(int64_t position);
  // The latest state snapshot at `position` or before; null: none.
  const StateSnapshot* SnapshotAt(int64_t position) const;
  // The position from which the sequence can continue after a crop to `length`.
  int64_t ResumePoint(int64_t length) const;
  void AddUnitsTo(PrefixIndex::Node* node, int64_t block);
  // Makes Publish start again at the first block.
  void ResetCursor();
  // Tokens that group `g` holds for the sequence; 1 for a state.
  int64_t TokensIn(int g) const;

  Cache* cache_ = nullptr;
  uint64_t generation_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_cross_tokens_ = 0;
  // GrowFor's fast path: growing to at most room_until_ tokens, for queries before the second, changes no group.
  int64_t room_until_ = 0;
  int64_t expiry_stable_until_ = 0;
  std::vector<Group> groups_;
  std::vector<StateSnapshot> snapshots_;  // by position, ascending
  std::vector<StateMark> marks_;          // of the step that is planned or runs
  PrefixIndex::Node* root_ = nullptr;     // of its salt; null: it shares nothing. Pinned, as the next
  PrefixIndex::Node* cursor_ = nullptr;   // the node of the last published block; the root before the first
  int64_t published_blocks_ = 0;
};

}  // namespace berth

#endif  // BERTH_CACHE_LEASE_H_
