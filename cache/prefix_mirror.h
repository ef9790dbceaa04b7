// A copy of one tenant's tree of the prefix index, made from its log on another thread. It knows which blocks a new
// sequence can use, for routers that send a request where its prefix is. Thread-compatible.
//
// A block is usable if a sequence can start at its end or later on some path through it. So blocks are usable only up
// to where states are kept, and only while the blocks are there that the sequence's next query sees. The usable blocks
// form a tree from the root. A request that leaves a path between two kept states starts at the earlier one. It then
// finds less than its usable blocks promise, by at most the distance between the two.
//
// Each node keeps how many blocks of each KV group end there without a gap (Run::length), so a change is passed down
// only as far as it matters. And it counts the ways to a start at or below it (num_ways), which is passed up.
#ifndef BERTH_CACHE_PREFIX_MIRROR_H_
#define BERTH_CACHE_PREFIX_MIRROR_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "cache/prefix_log.h"
#include "cache/spec.h"

namespace berth {

class PrefixMirror {
 public:
  // Sequences start at multiples of `multiple` tokens only.
  explicit PrefixMirror(const CachePlan& plan, int64_t multiple = 1);
  ~PrefixMirror();
  PrefixMirror(const PrefixMirror&) = delete;
  PrefixMirror& operator=(const PrefixMirror&) = delete;

  // Usable blocks that follow one another.
  struct Chain {
    uint64_t parent_hash = 0;  // of the block before the first; 0: the first begins the sequence
    std::vector<uint64_t> hashes;
    std::vector<int32_t> tokens;  // of all its blocks
  };
  struct Changes {
    std::vector<uint64_t> removed;  // before those that were stored
    std::vector<Chain> stored;      // parents before their children
    bool empty() const { return removed.empty() && stored.empty(); }
  };

  // Replaces the tree by what Cache::WatchPrefixes returned. What differs are changes.
  void Reset(absl::Span<const int32_t> words);
  // Takes one record of the log. One that names an unknown node has no effect.
  void Apply(const PrefixLog::Record& record);
  // Returns which blocks became usable since the last call, and which are no longer.
  Changes TakeChanges();
  // Returns the usable blocks as of the last TakeChanges.
  std::vector<Chain> GetAll() const;
  int64_t num_usable() const { return num_usable_; }

 private:
  struct Node;
  // The state of a node in one KV group.
  struct Run {
    bool held = false;        // it has its unit
    bool sinks_held = false;  // so have the blocks of the sinks, as far as they are on its path
    int64_t length = 0;       // the blocks up to this one that are held without a gap; at most `max_run` of the group
    friend bool operator==(const Run&, const Run&) = default;
  };
  struct Group {
    KvSpec kv;
    int64_t max_run = 0;  // a longer run makes no difference
    int number = 0;       // in the plan
  };

  Node* Find(uint64_t id) const;
  void AddNode(const PrefixLog::Record& record);
  void SetTokens(Node* node, absl::Span<const int32_t> tokens);
  void Delete(Node* node);
  void SetHeld(Node* node, int32_t number, bool held);
  // Computes the runs of `node` from its parent's, and passes a difference down.
  void PassDown(Node* node);
  bool UpdateRuns(Node* node) const;
  void UpdateStart(Node* node);
  bool IsStart(const Node& node) const;
  // Whether the blocks are held that a sequence of `length` tokens, whose last one is in the node's block, sees.
  bool HasBlocks(const Node& node, int64_t length) const;
  // Returns chains of `heads` and of the nodes below them for which `wanted` is true.
  template <typename Wanted>
  static std::vector<Chain> Chains(std::vector<const Node*> heads, const Wanted& wanted);

  const int64_t block_tokens_;
  const int64_t multiple_;
  const bool has_states_;
  std::vector<Group> groups_;
  std::unordered_map<uint64_t, std::unique_ptr<Node>> nodes_;
  Node* root_ = nullptr;           // null before the first Reset
  std::vector<uint64_t> touched_;  // nodes that may have become usable, or no longer
  // Hashes that TakeChanges has told of, and whose nodes are gone. One that comes back before the next call does not
  // count as a change.
  std::unordered_set<uint64_t> gone_;
  int64_t num_usable_ = 0;  // that TakeChanges has told of
};

}  // namespace berth

#endif  // BERTH_CACHE_PREFIX_MIRROR_H_
