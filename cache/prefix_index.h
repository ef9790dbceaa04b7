// Which prefixes of token sequences the cache still holds, so that a new sequence that starts alike shares them.
//
// A tree of nodes, one per block of tokens: a path from a root spells a prefix, a root stands for one tenant's salt. A
// node holds a unit per KV group, and states at its end or up to a block past it. Only a path's last node may
// have fewer tokens than a block. Units are given up one by one, least recently used first, as leases need their bytes;
// a node goes when it holds nothing and leads nowhere.
//
// Exact by construction: keys, values and states depend on the tokens before them alone, and those are compared
// themselves, not by hash. Engine thread only.
//
// Invariants (CheckIntegrity verifies them):
//   - a node that has children is full, and no two children of a node start with the same whole block;
//   - a unit is in at most one place of one node, and the pool says that it is cached;
//   - the units that no lease holds, and only those, are in the list of recency.
#ifndef BERTH_CACHE_PREFIX_INDEX_H_
#define BERTH_CACHE_PREFIX_INDEX_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/unit_pool.h"

namespace berth {

class Cache;

class PrefixIndex {
 public:
  // `cache` must outlive the index; its pools exist when the first method is called.
  explicit PrefixIndex(Cache* cache);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  struct Node;

  // What a new sequence can share.
  struct Match {
    int64_t num_tokens = 0;      // tokens whose cache it can share: the sequence starts there
    int64_t matched_tokens = 0;  // tokens that a path has in common with it, at least as many
    std::vector<Node*> path;     // the nodes of the num_tokens, the last perhaps in part
    UnitId state;                // at num_tokens, where the model has states; of CachePlan::kept_group
  };
  // The longest match of at most `limit` tokens below a root whose length is a multiple of `multiple`.
  Match Find(Node* root, absl::Span<const int32_t> tokens, int64_t limit, int64_t multiple);

  // The root of the sequences that may share with each other. Pinned until Unpin.
  Node* Root(absl::string_view salt);
  // The child of `parent` with these tokens, made if there is none. A child with fewer tokens that these continue
  // grows; one that continues these serves as it is. Pinned until Unpin.
  Node* Reach(Node* parent, absl::Span<const int32_t> tokens);
  Node* Pin(Node* node);
  void Unpin(Node* node);
  static int64_t NumTokens(const Node* node);         // of its block
  static UnitId UnitOf(const Node* node, int group);  // index -1: none
  // Lets the node hold a KV unit, or the states after its tokens and those of `suffix`, which has less than a block.
  // Does nothing where it has them.
  void AddUnit(Node* node, int group, UnitId unit);
  void AddState(Node* node, absl::Span<const int32_t> suffix, int group, UnitId unit);
  static bool HasState(const Node* node, absl::Span<const int32_t> suffix);

  // Gives up all that the nodes on the path to `node`, and below it, hold.
  void Forget(Node* node);

  // Told by the cache: the index has become the unit's only holder, or no longer is.
  void OnIdle(int group, UnitId unit);
  void OnBusy(int group, UnitId unit);
  // Gives up one place. REQUIRES: the unit is cached.
  void Evict(int group, UnitId unit);
  // The least recently used idle unit. False when there is none.
  bool EvictOldest();

  // Units given up since the start because their bytes were needed.
  int64_t num_evicted(int group) const { return num_evicted_[group]; }
  absl::Status CheckIntegrity() const;

 private:
  // Where a cached unit is listed, and its neighbours in the list of recency; by group and the unit's index.
  struct Place {
    Node* node = nullptr;
    bool idle = false;
    int64_t older = -1;  // packed (group, index)
    int64_t newer = -1;
    UnitId unit;
  };

  Place& PlaceOf(int64_t packed) { return places_[packed >> 32][packed & 0xffffffff]; }
  Place& PlaceOf(int group, UnitId unit);
  // The child of `node` that has the most first tokens in common with `tokens`, and how many those are.
  std::pair<Node*, int64_t> Closest(Node* node, absl::Span<const int32_t> tokens) const;
  void Add(Node* node, int group, UnitId unit);
  // Lets the match end at the latest state along its path, or past it, that serves.
  void FindState(Node* root, absl::Span<const int32_t> tokens, int64_t multiple, Match* match) const;
  void Empty(Node* node);
  // Drops the node, and then its parents, if it holds nothing and leads nowhere.
  void Prune(Node* node);
  // Whether a sequence of `length` tokens along the match finds the blocks that its next query sees in every KV group.
  bool HasBlocks(const Match& match, int64_t length) const;

  Cache* cache_;
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;  // by salt
  std::vector<std::vector<Place>> places_;
  int64_t oldest_ = -1;
  int64_t newest_ = -1;
  int64_t num_nodes_ = 0;
  std::vector<int64_t> num_evicted_;  // by group
};

}  // namespace berth

#endif  // BERTH_CACHE_PREFIX_INDEX_H_
