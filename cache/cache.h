// The cache: one arena, one pool of equal units per group, the leases of the sequences in it, and the index of prefixes
// that later sequences may share. Used between steps only; engine thread only.
//
// Why one arena: memory is not split between KV and recurrent state in advance. A pool takes slabs when it needs them
// and returns empty ones. Where free bytes are scattered, units are moved together (compaction). So every free byte can
// serve any pool. Units that only the index holds are evicted, least recently used first, when a lease needs their
// bytes.
//
// Invariants (CheckIntegrity verifies them):
//   - Every byte of the arena is in a hole, or in exactly one slab of exactly one pool.
//   - Every unit of a slab is free, or held by as many leases as list it, and by the index if the index lists it.
//   - A pool holds no slab whose units are all free.
//   - A lease holds in each KV group the blocks that its tokens need, and in the cross group those of its encoder
//     tokens. It holds its states, or a checkpoint in their place. Before it first grows, it holds no cross blocks.
//   - While a lease is within room_until_, its blocks are there, and the next step may write the last one.
//   - Live, shared, cached, free and overhead bytes add up to the arena's.
//   - The states that the index holds are within their share of the arena.
#ifndef BERTH_CACHE_CACHE_H_
#define BERTH_CACHE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/lease.h"
#include "cache/occupancy.h"
#include "cache/prefix_index.h"
#include "cache/slab_arena.h"
#include "cache/snapshot.h"
#include "cache/spec.h"
#include "cache/storage.h"
#include "cache/unit_pool.h"

namespace berth {

// Sequences that fork off another one after `shared_tokens` tokens and become as long as it.
struct Forks {
  int64_t count = 0;
  int64_t shared_tokens = 0;
};

class Cache {
 public:
  struct Options {
    // Fill returned units with NaN: a stale read shows, and no tenant's data stays behind. On in debug builds and in
    // every test.
    bool poison_returned_units = false;
    // The most of the arena that states kept for later sequences may take, as a share of it in [0, 1]. Above 0, one
    // unit of states may be kept at least.
    double state_share = 1;
  };

  // `storage` must outlive the cache. FAILED_PRECONDITION when the arena cannot hold one unit of each group.
  static absl::StatusOr<std::unique_ptr<Cache>> Create(CachePlan plan, ArenaStorage* storage, Options options);

  // REQUIRES: every lease is gone.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Returns an empty lease, which holds no unit until it grows. Never fails. `num_cross_tokens`: the encoder's tokens;
  // ignored by a model without cross-attention.
  SequenceLease NewLease(int64_t num_cross_tokens = 0);

  // Restores the lease that `snapshot` was saved from, in units of its own. All or nothing: INVALID_ARGUMENT when the
  // snapshot does not fit the plan, RESOURCE_EXHAUSTED when there is no room. May evict and move units.
  absl::StatusOr<SequenceLease> Restore(const CacheSnapshot& snapshot);
  // Like Restore, but without the bytes, which are undefined until SequenceLease::Load has copied all of them.
  absl::StatusOr<SequenceLease> Reserve(const CacheSnapshot& snapshot);

  // Copies bytes [from, to) of the snapshot of `tokens` out of the units that the index holds for them under `salt`.
  // Does not change how recently they were used. Returns false if the index no longer holds all of them, or the
  // arena's device failed. REQUIRES: `snapshot` has PrefixLayout and its bytes.
  bool ReadPrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                  CacheSnapshot* snapshot);
  // Adds where those bytes lie, without copying; valid until a unit moves or is evicted. No step writes to the added
  // spans. A last block that a lease may still write, past `tokens`, is copied at once instead.
  bool LocatePrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                    CacheSnapshot* snapshot, std::vector<SnapshotSpan>* spans);

  // Returns whether a new sequence could grow to `num_tokens` now, with steps of at most `step_tokens`.
  bool CanFit(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens = 0) const;
  // Returns the bytes that the sequence of `lease` and its forks lack until they have `num_tokens` tokens each, beside
  // what it holds already. They fit if available_bytes() are at least what all sequences lack together.
  int64_t MissingBytes(const SequenceLease& lease, int64_t num_tokens, int64_t step_tokens, Forks forks = {}) const;
  // Returns whether a sequence and its forks fit an otherwise empty arena. Thread-safe.
  bool ArenaHolds(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens, Forks forks) const;

  // Returns the longest sequence that fits an otherwise empty arena, growing at most `step_tokens` at a time, at most
  // `limit`. With cross-attention: the largest n such that n tokens fit with min(n, `cross_limit`) encoder tokens.
  int64_t MaxSequenceTokens(int64_t step_tokens, int64_t limit, int64_t cross_limit = kNoCrossLimit) const;

  // Compacts: moves at most `budget_bytes` of units out of sparse slabs into fuller ones of their pool.
  void Compact(int64_t budget_bytes);

  // Evicts every unit that only the index holds.
  void EvictAll();
  // Forgets the prefixes of `salt`, or all. Returns the bytes that this frees: units that leases hold stay theirs.
  int64_t ForgetPrefixes(std::optional<absl::string_view> salt);

  // Logs what changes in the prefixes of `salt`, until UnwatchPrefixes: see PrefixIndex. Returns what they are now.
  std::vector<int32_t> WatchPrefixes(absl::string_view salt, std::shared_ptr<PrefixLog> log);
  void UnwatchPrefixes(absl::string_view salt) { index_.Unwatch(salt); }
  // Lets the log's reader see the changes since the last call.
  void PublishPrefixLog() const { index_.PublishLog(); }

  // Fills `out` in place, without allocating once its vector has its size. The arguments are those of
  // MaxSequenceTokens.
  void GetOccupancy(int64_t step_tokens, int64_t limit, Occupancy* out, int64_t cross_limit = kNoCrossLimit) const;

  static constexpr int64_t kNoCrossLimit = std::numeric_limits<int64_t>::max();

  // Returns INTERNAL that names the first broken invariant, or OK.
  absl::Status CheckIntegrity() const;

  const CachePlan& plan() const { return plan_; }
  ArenaStorage& storage() const { return *storage_; }
  // Bytes that leases could still get: free bytes, wherever they are, and those that only the index holds.
  int64_t available_bytes() const;

 private:
  friend class SequenceLease;
  friend class PrefixIndex;
  Cache(CachePlan plan, ArenaStorage* storage, Options options);

  // Units by group; inline for every known model.
  using UnitCounts = absl::InlinedVector<int64_t, 8>;

  // Returns whether `units[g]` more units of each group g fit together, once `leaving_bytes` more bytes are free.
  bool CanAllocate(const UnitCounts& units, int64_t leaving_bytes = 0) const;
  int64_t BytesOf(const UnitCounts& units) const;
  // REQUIRES: CanAllocate. May evict and move.
  UnitId AllocateUnit(int group);
  // Allocates a unit and copies the bytes of `unit` into it.
  UnitId CopyUnit(int group, UnitId unit);
  // Returns a new checkpoint of a state unit, held as by a lease. REQUIRES: there is room for it.
  UnitId QuantiseUnit(UnitId states);
  // Writes the states of the checkpoint at `offset` to `states`, laid out as in a state unit.
  void ReadCheckpoint(int64_t offset, std::byte* states) const;
  // References of leases and of the index. They tell the index when it becomes a unit's only holder, and when it stops
  // being that.
  void AddLease(int group, UnitId unit);
  void DropLease(int group, UnitId unit);
  void SetCached(int group, UnitId unit);
  void DropCached(int group, UnitId unit);
  // Bytes that no unit uses: in holes and in slabs.
  int64_t free_bytes() const;
  // Gathers free bytes into a hole of `size_bytes`. REQUIRES: free_bytes() >= size_bytes.
  void MakeHole(int64_t size_bytes);
  void MoveBytes(int group, int64_t from, int64_t to, int64_t size_bytes);
  // Updates the leases' tables to the units' current offsets.
  void RefreshTables();
  // Returns the most units that a sequence of `num_tokens` tokens holds at once.
  UnitCounts UnitsForSequence(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const;
  // Adds the most that its forks hold in addition.
  void AddForks(int64_t num_tokens, int64_t step_tokens, Forks forks, UnitCounts* units) const;
  // Returns how many of the lease's units of group `g` serve it until it has `num_tokens` tokens, or make room when
  // they expire. The others are shared with another lease, and expire or have to be copied.
  int64_t KeptUnits(const SequenceLease& lease, int g, int64_t num_tokens) const;
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
