// The cache: one arena, one pool of equal units per group, the leases of the sequences in it, and the index of prefixes
// that later sequences may share.
//
// Why one arena: no split between KV and recurrent state is fixed in advance. A pool takes slabs when it needs them and
// gives empty ones back; where free bytes are scattered, units are moved together (compaction). So whatever is free can
// serve any pool, to the byte. What only the index holds is given up, least recently used first, as soon as a lease
// needs its bytes. Between steps only; engine thread only.
//
// Invariants (CheckIntegrity verifies them):
//   - every byte of the arena is in a hole, or in exactly one slab, of exactly one pool;
//   - every unit of a slab is free, or held by as many leases as list it, and by the index if that lists it;
//   - a pool holds no slab whose units are all free;
//   - a lease holds in each group what its tokens need: of cross blocks those of its encoder tokens, or none before it
//     first grew; a checkpoint in the place of its states, or not;
//   - where a lease says that it has room, its blocks are there and the next step may write the last one;
//   - live + shared + cached + free + overhead bytes add up to the arena's.
#ifndef BERTH_CACHE_CACHE_H_
#define BERTH_CACHE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_set>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/image.h"
#include "cache/lease.h"
#include "cache/occupancy.h"
#include "cache/prefix_index.h"
#include "cache/slab_arena.h"
#include "cache/spec.h"
#include "cache/storage.h"
#include "cache/unit_pool.h"

namespace berth {

// Others that fork off a sequence after `shared_tokens` and become as long.
struct Forks {
  int64_t count = 0;
  int64_t shared_tokens = 0;
};

class Cache {
 public:
  struct Options {
    // Fill returned units with NaN, so that a stale read shows and no tenant's data stays behind. On in debug builds
    // and in every test.
    bool poison_returned_units = false;
  };

  // `storage` must outlive the cache. FAILED_PRECONDITION when the arena cannot hold one unit of each group.
  static absl::StatusOr<std::unique_ptr<Cache>> Create(CachePlan plan, ArenaStorage* storage, Options options);

  // REQUIRES: every lease is gone.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // An empty lease: holds no unit until it grows. Never fails. `num_cross_tokens`: what the encoder reads; of no effect
  // on a model without cross-attention.
  SequenceLease NewLease(int64_t num_cross_tokens = 0);

  // The lease that `image` was saved from, in units of its own. All or nothing: INVALID_ARGUMENT when the image does
  // not fit the plan, RESOURCE_EXHAUSTED when there is no room. May evict and move.
  absl::StatusOr<SequenceLease> Restore(const CacheImage& image);
  // The same but for the bytes: the lease's are undefined until SequenceLease::Load has brought all of them.
  absl::StatusOr<SequenceLease> Reserve(const CacheImage& image);

  // Copies bytes [from, to) of the image of `tokens` out of what the index holds of them under `salt`, whose recency
  // stays as it is. False: it no longer holds all of them. REQUIRES: `image` has the layout and the room for that.
  bool ReadPrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                  CacheImage* image);
  // Only adds where those bytes lie, until something moves or is given up. No step writes there: what a lease may still
  // write, past the tokens in the last block, is copied at once.
  bool LocatePrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                    CacheImage* image, std::vector<ImageSpan>* spans);

  // Whether a new sequence of `num_tokens` tokens could grow to that length now, with steps of at most `step_tokens`.
  bool CanFit(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens = 0) const;
  // The same for the sequence of `lease`, which may hold some of it already, and for its forks, beside `promised`
  // tokens of others.
  bool CanFit(const SequenceLease& lease, int64_t num_tokens, int64_t step_tokens, int64_t promised,
              Forks forks = {}) const;
  // Whether a sequence and its forks fit the arena when they have it for themselves. Thread-safe.
  bool ArenaHolds(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens, Forks forks) const;

  // The longest sequence that fits the whole arena alone, growing at most `step_tokens` at a time. A length that no
  // window limits is capped at `limit`. Of a model with cross-attention: the largest n for which n tokens fit beside n
  // encoder tokens, or beside `cross_limit` of them if that is less.
  int64_t MaxSequenceTokens(int64_t step_tokens, int64_t limit, int64_t cross_limit = kNoCrossLimit) const;

  // Moves units together, at most `budget_bytes` of them: empties sparse slabs into fuller ones of their pool.
  void Compact(int64_t budget_bytes);

  // Gives up all that only the index holds.
  void EvictAll();

  // Fills `out` in place: no allocation once its vector has its size. The arguments are those of MaxSequenceTokens.
  void GetOccupancy(int64_t step_tokens, int64_t limit, Occupancy* out, int64_t cross_limit = kNoCrossLimit) const;

  static constexpr int64_t kNoCrossLimit = std::numeric_limits<int64_t>::max();

  // INTERNAL naming the first invariant that does not hold.
  absl::Status CheckIntegrity() const;

  const CachePlan& plan() const { return plan_; }
  ArenaStorage& storage() const { return *storage_; }
  // Bytes that a lease could still get: free ones, wherever they are, and those that only the index holds.
  int64_t available_bytes() const;

 private:
  friend class SequenceLease;
  friend class PrefixIndex;
  Cache(CachePlan plan, ArenaStorage* storage, Options options);

  // Units by group; inline for every model known.
  using UnitCounts = absl::InlinedVector<int64_t, 8>;

  // Whether `units[g]` more units of each group g can be had at once, when `leaving_bytes` more come back before.
  bool CanAllocate(const UnitCounts& units, int64_t leaving_bytes = 0) const;
  int64_t BytesOf(const UnitCounts& units) const;
  // REQUIRES: CanAllocate. May evict and move.
  UnitId AllocateUnit(int group);
  // A unit with the bytes of another.
  UnitId CopyUnit(int group, UnitId unit);
  // A checkpoint of a state unit, held as by a lease. REQUIRES: there is room for it.
  UnitId QuantiseUnit(UnitId states);
  // The states of the checkpoint at `offset`, laid out as in their unit.
  void ReadCheckpoint(int64_t offset, std::byte* states) const;
  // References of leases and of the index. The index learns when it becomes a unit's only holder, and when it no longer
  // is.
  void AddLease(int group, UnitId unit);
  void DropLease(int group, UnitId unit);
  void SetCached(int group, UnitId unit);
  void DropCached(int group, UnitId unit);
  // Bytes that no unit uses: in holes and in slabs.
  int64_t free_bytes() const;
  // Makes a hole of `size_bytes` out of free bytes. REQUIRES: there are as many.
  void MakeHole(int64_t size_bytes);
  void MoveBytes(int group, int64_t from, int64_t to, int64_t size_bytes);
  // Makes the leases' tables say where the units lie now.
  void RefreshTables();
  // What a sequence of `num_tokens` tokens holds at its fullest.
  UnitCounts UnitsForSequence(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const;
  // Adds to that what its forks hold beside, at the most: a window may have left all that they shared.
  void AddForks(int64_t num_tokens, int64_t step_tokens, Forks forks, UnitCounts* units) const;
  absl::Status CheckLease(const SequenceLease& lease) const;
  absl::Status CheckReferences() const;

  CachePlan plan_;
  ArenaStorage* storage_;
  Options options_;
  SlabArena slabs_;
  std::vector<UnitPool> pools_;  // by group
  PrefixIndex index_;
  std::unordered_set<SequenceLease*> leases_;
  uint64_t next_generation_ = 1;
  std::vector<int64_t> compacted_bytes_;  // by group, since the start
};

}  // namespace berth

#endif  // BERTH_CACHE_CACHE_H_
