// A sequence's cache as plain bytes, outside the arena. SequenceLease::Save copies it out, and Cache::Restore copies it
// back into whatever units are free then. It knows no tensors: units of every kind, states and cross blocks included,
// are byte spans. Plain data; move-only; any thread.
#ifndef BERTH_CACHE_SNAPSHOT_H_
#define BERTH_CACHE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cache/spec.h"

namespace berth {

struct CacheSnapshot {
  // The units of one group of the plan. A windowed group leaves out `expired_blocks` blocks after those of its sinks:
  // no query at position num_tokens or later sees them.
  struct Group {
    int64_t expired_blocks = 0;
    int64_t num_units = 0;
    int64_t unit_bytes = 0;

    friend bool operator==(const Group&, const Group&) = default;
  };

  int64_t num_tokens = 0;        // tokens whose cache this is; 0: empty
  int64_t num_cross_tokens = 0;  // the encoder's tokens
  std::vector<Group> groups;
  std::unique_ptr<std::byte[]> bytes;  // the units, group after group, block after block
  int64_t size_bytes = 0;

  bool empty() const { return num_tokens == 0; }
};

// A range of the arena, and its place in a snapshot.
struct SnapshotSpan {
  int64_t offset = 0;  // in the arena; -1: the snapshot has the bytes already
  std::byte* bytes = nullptr;
  int64_t size_bytes = 0;
};

// Returns the snapshot of a sequence of `num_tokens` tokens without its bytes: its groups and their sizes. A sequence's
// states are never quantised, so the group of checkpoints, which comes last, is not in it.
CacheSnapshot SnapshotLayout(const CachePlan& plan, int64_t num_tokens, int64_t num_cross_tokens);
// Returns this of a prefix, as the index holds it. If checkpoints are quantised, it holds a checkpoint and
// no states.
CacheSnapshot PrefixLayout(const CachePlan& plan, int64_t num_tokens);

// Returns whether a snapshot of `num_tokens` tokens also holds the cache of its first `first_tokens`. With states, both
// must be equal. With windows, the snapshot must hold what the window of the first tokens sees.
bool SnapshotServes(const CachePlan& plan, int64_t num_tokens, int64_t first_tokens);

// Returns INVALID_ARGUMENT that names the first field in which `snapshot` does not fit a sequence, or a prefix, of
// `plan`.
absl::Status CheckSnapshot(const CachePlan& plan, const CacheSnapshot& snapshot);
absl::Status CheckPrefixSnapshot(const CachePlan& plan, const CacheSnapshot& snapshot);

}  // namespace berth

#endif  // BERTH_CACHE_SNAPSHOT_H_
