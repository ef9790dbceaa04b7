// A sequence's place in the cache: its block table in each KV pool, its state unit, and the blocks of a fixed number of
// encoder tokens where the model has cross-attention. Giving it up (by destruction) returns every unit at once, so a
// cancelled or failed request cannot leak. Move-only. Engine thread only.
//
// Contract with the kernels: tokens [0, num_tokens()) have a place; the kernel writes the new ones. A state is read
// only when the step's start is > 0: start == 0 *means* zero state, so nothing is cleared on reuse. Cross blocks come
// with the first growth, all at once, and are written once, in the step that follows.
//
// Units may be shared: with forks of the sequence, with the prefix index, with snapshots. Growing copies those that the
// step would write and someone else still reads, and only those.
//
// Where checkpoints are quantised (CachePlan::checkpoint_group) the index keeps no state units, but quantised copies. A
// lease that went on from one, by Adopt or from a tier, holds that in its states' place, until the next growth expands
// it into a state unit. So its own states are never rounded, and its snapshots go back to just those it had.
#ifndef BERTH_CACHE_LEASE_H_
#define BERTH_CACHE_LEASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/image.h"
#include "cache/prefix_index.h"
#include "cache/unit_pool.h"

namespace berth {

class Cache;

// Blocks of one KV or cross group; block b is of tokens [b * block_tokens, (b + 1) * block_tokens). The first
// `sink_blocks` stay; of those after them the first `left_blocks` have left the window.
struct BlockTable {
  int64_t sink_blocks = 0;
  int64_t left_blocks = 0;
  absl::Span<const int64_t> offsets;  // bytes in the arena, of the blocks that have not left

  // REQUIRES: block `b` is held.
  int64_t At(int64_t b) const { return offsets[b < sink_blocks ? b : b - left_blocks]; }
};

// What Adopt found.
struct PrefixHit {
  int64_t num_tokens = 0;      // now in the lease
  int64_t matched_tokens = 0;  // known to the index; those past num_tokens have to be computed again, from the state
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
  absl::Status Grow(int64_t n) { return GrowFor(n, num_tokens_); }
  // The same for a lease that has grown for this step before: the step's queries start at `first_query`.
  absl::Status GrowFor(int64_t n, int64_t first_query);

  // Drops the cache of tokens from position `length` on, and returns the position r <= length from which the caller
  // must replay: r == length where every group still holds what tokens >= length need to see; else the position of the
  // latest snapshot that serves; else 0. Afterwards num_tokens() == r. Cross blocks stay, whatever r: they hold nothing
  // of these tokens. REQUIRES: 0 <= length <= num_tokens().
  int64_t Crop(int64_t length);

  // Keeps the states at num_tokens(), so that Crop can come back here; the oldest beyond `keep` go. Of no effect on a
  // model without states. Costs a unit's copy when the lease grows.
  void Snapshot(int64_t keep);

  // Whether Crop(position) would stay there, as far as states are concerned.
  bool CanCropTo(int64_t position) const;

  // The image of all that later tokens can see, which Cache::Restore brings back; snapshots are left out. Its bytes are
  // undefined until Save has copied all of them out of the arena: bytes [from, to) at a time, while the lease stays as
  // it is. REQUIRES: the step that computed the lease's tokens is done.
  CacheImage NewImage() const;
  void Save(int64_t from, int64_t to, CacheImage* image) const;
  // Only adds where those bytes come from and go to, until something moves. A checkpoint is expanded at once.
  void LocateSaved(int64_t from, int64_t to, CacheImage* image, std::vector<ImageSpan>* spans) const;
  // NewImage with its bytes.
  CacheImage Save() const;
  // Brings bytes [from, to) of those that the lease holds, in the order of the image that it was reserved for, from one
  // of these tokens or of more (see ImageServes). REQUIRES: the lease is as Cache::Reserve gave it.
  void Load(const CacheImage& image, int64_t from, int64_t to);
  // Adds where those bytes come from and go to, until something moves.
  void Locate(const CacheImage& image, int64_t from, int64_t to, std::vector<ImageSpan>* spans) const;
  // The size of that image.
  int64_t image_bytes() const;

  // Another lease of the same tokens, which shares every unit until one of the two writes it. Never fails.
  SequenceLease Fork();

  // Shares the longest prefix of `tokens` that the index holds under `salt` and whose length is a multiple of
  // `multiple`, at most tokens.size() - 1 of them, and from now on lets Publish tell the index. REQUIRES: a lease that
  // is empty and has no encoder tokens.
  PrefixHit Adopt(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t multiple = 1);
  // Only lets Publish tell the index under `salt` from now on. REQUIRES: !shares().
  void Share(absl::string_view salt);
  // Tells the index of what the lease holds: whole blocks; with `checkpoint` also the last one, and the states. Of no
  // effect unless Adopt or Share was called. Quantised states take bytes that no lease holds: where there are too few,
  // the index does not get them. REQUIRES: the step that computed them is done; `tokens` starts with those of the
  // lease.
  void Publish(absl::Span<const int32_t> tokens, bool checkpoint);
  // Whether Publish has an effect.
  bool shares() const { return root_ != nullptr; }
  void StopSharing();
  // Takes back all that the index holds of this sequence's tokens, whoever computed it: something in it is no good.
  void Withdraw();

  // Returns every unit. The lease is empty (num_tokens() == 0) and may grow again.
  void Reset();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_cross_tokens() const { return num_cross_tokens_; }
  uint64_t generation() const { return generation_; }
  BlockTable blocks(int group) const {
    return {
        .sink_blocks = SinkBlocks(group), .left_blocks = groups_[group].left_blocks, .offsets = groups_[group].offsets};
  }
  // Byte offset of the sequence's unit in a state group. REQUIRES: the lease has grown since Adopt, Reserve or Crop.
  int64_t state_unit(int group) const { return groups_[group].offsets[0]; }

 private:
  friend class Cache;
  struct Group {
    int64_t left_blocks = 0;
    std::vector<UnitId> units;     // as BlockTable's offsets; one entry for a state group, or for that of checkpoints
    std::vector<int64_t> offsets;  // where they lie
    bool tail_shared = false;      // the last unit may have another reader of what the next step writes
  };
  struct StateSnapshot {
    int64_t position = 0;
    int group = 0;  // of the states, or of checkpoints
    UnitId unit;
  };

  SequenceLease(Cache* cache, uint64_t generation, int64_t num_cross_tokens);
  void Release();
  // KvSpec's, of group `g`.
  int64_t SinkBlocks(int g) const;
  int64_t LeftBlocks(int g, int64_t position) const;
  // Units that group `g` must end with to hold tokens [0, num_tokens); of a cross group, those of the encoder's tokens;
  // of checkpoints none, once it has grown.
  int64_t EndUnit(int g, int64_t num_tokens) const;
  // Whether the next step writes into the last unit of group `g`, which someone else reads.
  bool MustCopy(int g) const;
  void CopyTail(int g);
  // The next step may write what someone else reads in the last unit of group `g`.
  void ShareTail(int g);
  // Says how far the lease can grow without a unit coming or going. REQUIRES: it has grown, for queries from
  // `first_query` on.
  void Settle(int64_t first_query);
  // The group in which the lease holds its states: theirs or that of checkpoints; -1: it holds none.
  int HeldStateGroup() const;
  bool HoldsCheckpoint() const;
  // Bytes of its checkpoint, if no other lease holds it.
  int64_t OwnCheckpointBytes() const;
  // Gives the checkpoint up, and returns the states that it expands to.
  std::unique_ptr<std::byte[]> TakeCheckpoint();
  // Puts the states into the lease's new state unit: `states`, or those of the checkpoint that it holds.
  void ExpandCheckpoint(std::unique_ptr<std::byte[]> states);
  // Lets the index keep the states after cursor_'s tokens and `rest`.
  void PublishStates(absl::Span<const int32_t> rest);
  // Bytes that nobody else holds in blocks which no query at `position` or later can see.
  int64_t LeavingBytes(int64_t position) const;
  // Takes the places of those tails that only the index shares back from it, so that they need no copy, and that of a
  // checkpoint, so that it can go.
  void UncacheTails();
  void Append(int g, UnitId unit);
  // Gives back the first `count` units of group `g` after its sinks, or its last.
  void FreeHead(int g, int64_t count);
  void FreeTail(int g, int64_t count);
  void DropSnapshotsAfter(int64_t position);
  // The latest snapshot at `position` or before; null: none.
  const StateSnapshot* SnapshotAt(int64_t position) const;
  // The position from which the sequence can go on after a crop to `length`.
  int64_t ResumePoint(int64_t length) const;
  void AddUnitsTo(PrefixIndex::Node* node, int64_t block);
  // Lets Publish start again.
  void ResetCursor();
  // Tokens that group `g` holds for the sequence; 1 for a state.
  int64_t TokensIn(int g) const;

  Cache* cache_ = nullptr;
  uint64_t generation_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_cross_tokens_ = 0;
  // Growing to no more tokens than the first, for queries before the second, changes no group.
  int64_t room_until_ = 0;
  int64_t stays_until_ = 0;
  std::vector<Group> groups_;
  std::vector<StateSnapshot> snapshots_;  // by position, ascending
  PrefixIndex::Node* root_ = nullptr;     // of those it shares with; null: none. Pinned, as the next
  PrefixIndex::Node* cursor_ = nullptr;   // the node of the last whole block told to the index; the root before
  int64_t published_blocks_ = 0;
};

}  // namespace berth

#endif  // BERTH_CACHE_LEASE_H_
