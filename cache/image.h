// A sequence's cache as plain bytes, outside the arena: what SequenceLease::Save copies out and Cache::Restore copies
// back in, into whatever units are free then. It knows nothing of tensors: units of every kind, state and cross units
// included, are byte spans. Plain data; move-only; any thread.
#ifndef BERTH_CACHE_IMAGE_H_
#define BERTH_CACHE_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cache/spec.h"

namespace berth {

struct CacheImage {
  // Of one group of the plan. What no query at position num_tokens or later can see is left out: so many blocks of a
  // windowed group after those of its sinks.
  struct Group {
    int64_t left_blocks = 0;
    int64_t num_units = 0;
    int64_t unit_bytes = 0;

    friend bool operator==(const Group&, const Group&) = default;
  };

  int64_t num_tokens = 0;        // whose cache this is; 0: an image of nothing
  int64_t num_cross_tokens = 0;  // of the encoder
  std::vector<Group> groups;
  std::unique_ptr<std::byte[]> bytes;  // the units, group after group, block after block
  int64_t size_bytes = 0;

  bool empty() const { return num_tokens == 0; }
};

// Bytes of the arena, and their place in an image.
struct ImageSpan {
  int64_t offset = 0;  // -1: the image has them already
  std::byte* bytes = nullptr;
  int64_t size_bytes = 0;
};

// What the image of a sequence of so many tokens holds, without bytes: group by group, and their size. Its states are
// never quantised: the group of checkpoints, which comes last, is not in it.
CacheImage ImageLayout(const CachePlan& plan, int64_t num_tokens, int64_t num_cross_tokens);
// The same of a prefix, as the index holds it: where checkpoints are quantised, one of those and no states.
CacheImage PrefixLayout(const CachePlan& plan, int64_t num_tokens);

// Whether an image of `num_tokens` tokens also holds the cache of its first `first_tokens`: it must be as long where
// there are states, and hold what their window sees where there are windows.
bool ImageServes(const CachePlan& plan, int64_t num_tokens, int64_t first_tokens);

// INVALID_ARGUMENT naming the first thing in which the image is not one of a sequence, or of a prefix, under `plan`.
absl::Status CheckImage(const CachePlan& plan, const CacheImage& image);
absl::Status CheckPrefixImage(const CachePlan& plan, const CacheImage& image);

}  // namespace berth

#endif  // BERTH_CACHE_IMAGE_H_
