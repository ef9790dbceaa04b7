// The cache: one arena of equal slabs, one pool of equal units per group, and the leases of the sequences in it.
//
// Why one arena: no split between KV and recurrent state is fixed in advance; a pool takes slabs when it needs them and
// gives empty ones back. Engine thread only.
//
// Invariants (CheckIntegrity verifies them):
//   - every slab belongs to the arena's free list or to exactly one pool;
//   - every unit of a pool's slab is free or held by exactly one live lease, under that lease's generation;
//   - a pool holds no slab whose units are all free;
//   - a lease holds in each group what its tokens need: of cross blocks those of its encoder tokens, or none before it
//     first grew;
//   - free + leased + overhead bytes add up to the arena's.
#ifndef BERTH_CACHE_CACHE_H_
#define BERTH_CACHE_CACHE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_set>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/lease.h"
#include "cache/occupancy.h"
#include "cache/slab_arena.h"
#include "cache/spec.h"
#include "cache/storage.h"
#include "cache/unit_pool.h"

namespace berth {

class Cache {
 public:
  struct Options {
    // Fill returned units with NaN, so that a stale read shows. On in debug builds and in every test.
    bool poison_returned_units = false;
  };

  // `storage` must outlive the cache. FAILED_PRECONDITION when the arena is too small to hold one slab per pool.
  static absl::StatusOr<std::unique_ptr<Cache>> Create(CachePlan plan, ArenaStorage* storage, Options options);

  // REQUIRES: every lease is gone.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // An empty lease: holds no unit until it grows. Never fails. `num_cross_tokens`: what the encoder reads; of no effect
  // on a model without cross-attention.
  SequenceLease NewLease(int64_t num_cross_tokens = 0);

  // Whether a new sequence of `num_tokens` tokens could grow to that length now, with steps of at most `step_tokens`.
  bool CanFit(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens = 0) const;

  // The longest sequence that fits the whole arena alone, growing at most `step_tokens` at a time. A length that no
  // window limits is capped at `limit`. Of a model with cross-attention: the largest n for which n tokens fit beside n
  // encoder tokens, or beside `cross_limit` of them if that is less.
  int64_t MaxSequenceTokens(int64_t step_tokens, int64_t limit, int64_t cross_limit = kNoCrossLimit) const;

  // Fills `out` in place: no allocation once its vector has its size. The arguments are those of MaxSequenceTokens.
  void GetOccupancy(int64_t step_tokens, int64_t limit, Occupancy* out, int64_t cross_limit = kNoCrossLimit) const;

  static constexpr int64_t kNoCrossLimit = std::numeric_limits<int64_t>::max();

  // INTERNAL naming the first invariant that does not hold.
  absl::Status CheckIntegrity() const;

  const CachePlan& plan() const { return plan_; }
  ArenaStorage& storage() const { return *storage_; }

 private:
  friend class SequenceLease;
  Cache(CachePlan plan, ArenaStorage* storage, Options options);

  // Units by group; inline for every model known.
  using UnitCounts = absl::InlinedVector<int64_t, 8>;

  // Whether `units[g]` more units of each group g can be had at once.
  bool CanAllocate(const UnitCounts& units) const;
  int64_t AllocateUnit(int group, uint64_t generation) { return pools_[group].Allocate(generation); }
  void FreeUnit(int group, int64_t offset, uint64_t generation);
  // What a sequence of `num_tokens` tokens holds at its fullest.
  UnitCounts UnitsForSequence(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const;
  absl::Status CheckLease(const SequenceLease& lease) const;

  CachePlan plan_;
  ArenaStorage* storage_;
  Options options_;
  SlabArena slabs_;
  std::vector<UnitPool> pools_;  // by group
  std::unordered_set<const SequenceLease*> leases_;
  uint64_t next_generation_ = 1;
};

}  // namespace berth

#endif  // BERTH_CACHE_CACHE_H_
