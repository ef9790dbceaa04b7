// Knows which prefixes of token sequences the cache still holds, so that new sequences can share them. Engine thread
// only.
//
// It is a tree of nodes, one per block of tokens. A root stands for one tenant's salt, and a path from it spells a
// prefix. A node holds a unit per KV group, and states at its end or up to a block past it. Only a path's last node may
// have fewer tokens than a block. Units are evicted one by one, least recently used first, as leases need their bytes.
// A node is deleted when it holds nothing and has no children.
//
// States have a limit of their own, because each is large and serves one length only. Over the limit, states are
// thinned: of the ones that were not used for longest, the one goes whose loss costs least (EvictState).
//
// Exact by construction: keys, values and states depend only on the tokens before them, and the tokens themselves are
// compared, not hashes.
//
// Invariants (CheckIntegrity verifies them):
//   - A node that has children is full, and no two children of a node start with the same whole block.
//   - A unit is in at most one place of one node, and its pool marks it as cached.
//   - The list of recency holds exactly the units that no lease holds.
//   - A node has an id if its root is watched, and no other node.
//   - The list of states holds exactly the units of states, and they are at most max_states.
#ifndef BERTH_CACHE_PREFIX_INDEX_H_
#define BERTH_CACHE_PREFIX_INDEX_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/prefix_log.h"
#include "cache/unit_pool.h"

namespace berth {

class Cache;

class PrefixIndex {
 public:
  // `cache` must outlive the index; its pools exist when the first method is called. `max_states`: the most units
  // of states to keep.
  PrefixIndex(Cache* cache, int64_t max_states);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  struct Node;

  // What a new sequence can share: the result of Find.
  struct Match {
    int64_t num_tokens = 0;      // tokens whose cache it can share: the sequence starts there
    int64_t matched_tokens = 0;  // tokens that it has in common with a path, >= num_tokens
    std::vector<Node*> path;     // the nodes of num_tokens tokens; the last may be used in part
    UnitId state;                // the states at num_tokens, if the model has any; of CachePlan::kept_group
  };
  // Returns the longest match below a root, of at most `limit` tokens and a multiple of `multiple`.
  Match Find(Node* root, absl::Span<const int32_t> tokens, int64_t limit, int64_t multiple);

  // Returns the root of `salt`, made if needed. Pinned until Unpin.
  Node* Root(absl::string_view salt);
  // Returns the child of `parent` with these tokens, made if needed. A child whose tokens are a prefix of these grows.
  // A child whose tokens start with these is returned unchanged. Pinned until Unpin.
  Node* Reach(Node* parent, absl::Span<const int32_t> tokens);
  Node* Pin(Node* node);
  void Unpin(Node* node);
  static int64_t NumTokens(const Node* node);         // of its block
  static UnitId UnitOf(const Node* node, int group);  // index -1: none
  // Adds a KV unit to the node, or the states after its tokens and those of `suffix`, which is shorter than a block.
  // Does nothing if the node has them, or if no states may be kept. REQUIRES: the node is pinned.
  void AddUnit(Node* node, int group, UnitId unit);
  void AddState(Node* node, absl::Span<const int32_t> suffix, int group, UnitId unit);
  static bool HasState(const Node* node, absl::Span<const int32_t> suffix);

  // Evicts all units of the nodes on the path to `node` and below it; of its children, those that `tokens` begin or
  // that begin `tokens`.
  void Forget(Node* node, absl::Span<const int32_t> tokens);
  // Evicts all units below the root of `salt`, or below every root. Leases keep the units that they hold.
  void ForgetAll(std::optional<absl::string_view> salt);

  // Logs from now on what changes below the root of `salt`, and returns what is there as words of PrefixLog. Nodes get
  // new ids: records of a former watch name none of them. Allocates.
  std::vector<int32_t> Watch(absl::string_view salt, std::shared_ptr<PrefixLog> log);
  void Unwatch(absl::string_view salt);
  // Lets the log's reader see what has changed.
  void PublishLog() const {
    if (log_ != nullptr) log_->Publish();
  }

  // Called by the cache when the index becomes the unit's only holder, and when it stops being that.
  void OnIdle(int group, UnitId unit);
  void OnBusy(int group, UnitId unit);
  // Removes one unit from its node. REQUIRES: the unit is cached.
  void Evict(int group, UnitId unit);
  // Evicts the least recently used idle unit. Returns false if no unit is idle.
  bool EvictOldest();

  // Units evicted since the start: by EvictOldest, or as a state that is one too many.
  int64_t num_evicted(int group) const { return num_evicted_[group]; }
  int64_t max_states() const { return max_states_; }
  absl::Status CheckIntegrity() const;

 private:
  // A place's neighbours in a list of recency: packed (group, index).
  struct Links {
    int64_t older = -1;
    int64_t newer = -1;
  };
  // The node of a cached unit, and its neighbours; by group and the unit's index.
  struct Place {
    Node* node = nullptr;
    bool idle = false;
    Links links;        // among idle units
    Links state_links;  // among states
    int64_t used = 0;   // a state: num_added_ when it was used last
    UnitId unit;
  };
  // A list of places, least recently used first, linked by one of their Links.
  struct RecencyList {
    Links Place::*links;
    int64_t oldest = -1;
    int64_t newest = -1;
    int64_t size = 0;
  };
  void PushNewest(int64_t packed, RecencyList* list);
  void Remove(int64_t packed, RecencyList* list);

  Place& PlaceOf(int64_t packed) { return places_[packed >> 32][packed & 0xffffffff]; }
  const Place& PlaceOf(int64_t packed) const { return places_[packed >> 32][packed & 0xffffffff]; }
  Place& PlaceOf(int group, UnitId unit);
  // Returns the child of `node` that shares the longest prefix with `tokens`, and that prefix's length.
  std::pair<Node*, int64_t> Closest(Node* node, absl::Span<const int32_t> tokens) const;
  void Add(Node* node, int group, UnitId unit);
  // Makes a state the one that was used last. Does nothing for other units.
  void Touch(int group, UnitId unit);
  // Evicts one state, to make room for another.
  void EvictState();
  // The tokens that a sequence has to compute again if it cannot start from these states: those after the states before
  // them on their path.
  int64_t TokensToReplay(const Place& place) const;
  // Sets the match's end to the latest usable states on its path or past it.
  void FindState(Node* root, absl::Span<const int32_t> tokens, int64_t multiple, Match* match) const;
  void Empty(Node* node);
  // Does nothing for a node without an id.
  void Log(const PrefixLog::Record& record) const {
    if (record.node != 0) log_->Append(record);
  }
  // The nodes at and below `node`, parents first; of its children, those that `tokens` begin or that begin `tokens`.
  static std::vector<Node*> Below(Node* node, absl::Span<const int32_t> tokens = {});
  // Deletes the node, and then its parents, while they hold nothing and have no children.
  void Prune(Node* node);
  absl::Status CheckStates(int64_t num_states) const;
  // Blocks [begin, end) of a path that hold units of a group.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
  };
  // Whether the match has, in every KV group, the blocks that the next query of a sequence of `length` tokens sees.
  // `runs`, by group, is what the calls for this match have found so far.
  bool HasBlocks(const Match& match, int64_t length, absl::Span<Run> runs) const;

  Cache* cache_;
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;  // by salt
  std::vector<std::vector<Place>> places_;
  const int64_t max_states_;
  RecencyList idle_ = {.links = &Place::links};
  RecencyList states_ = {.links = &Place::state_links};
  int64_t num_added_ = 0;  // states, since the start: the clock of Place::used
  int64_t num_nodes_ = 0;
  std::vector<int64_t> num_evicted_;  // by group
  std::shared_ptr<PrefixLog> log_;    // null: there was no watch yet
  uint64_t last_id_ = 0;
};

}  // namespace berth

#endif  // BERTH_CACHE_PREFIX_INDEX_H_
