// Keeps prefixes that the arena drops: in host memory, and below that in files. Part of the SwapManager. Engine thread
// only.
//
// What moves is one CacheSnapshot of a whole prefix. It ends where a later sequence can resume: where a sequence ended,
// where two prompts part, or at the last point of the grid of kept states. Single units would not do. A sequence needs
// all units of a prefix, and with states anything less is useless. One snapshot is one copy, one piece of memory and
// one file, so nothing is ever half there. Snapshots that share a beginning hold it twice. Without states and windows,
// a snapshot serves all its beginnings, and only the longest snapshot is kept.
//
// Prefixes move ahead of need. The index gives up unit by unit in the middle of a growth, where nothing may be slow. So
// a prefix is queued when its sequence leaves it behind, and copied later, beside a step, least recently used first. It
// is copied once it has not been used for `idle`, or when the queue holds more than half of what sequences could still
// take from the arena. The index drops its units later, as ever. A copied prefix is also written to the disk, so host
// memory can drop it at once when it needs the room. The disk drops its oldest, and those beyond a tenant's quota.
//
// Where copying costs more than computing (CopyCost), nothing moves in either direction.
//
// Invariants:
//   - an entry is in the list of one place: the fastest that holds it;
//   - HostTier::prefix_bytes is the size of the snapshots here and of those being read;
//   - disk_bytes is the size of the files, those being written included, and at most disk_limit_bytes.
#ifndef BERTH_SCHEDULER_TIERS_PREFIX_TIER_H_
#define BERTH_SCHEDULER_TIERS_PREFIX_TIER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/cache.h"
#include "cache/snapshot.h"
#include "scheduler/load/step_progress.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/tiers/copy_cost.h"
#include "scheduler/tiers/host_tier.h"
#include "scheduler/tiers/prefix_disk.h"
#include "scheduler/tiers/step_copies.h"

namespace berth {

// What dropping prefixes frees.
struct FreedBytes {
  int64_t arena = 0;
  int64_t host_tier = 0;
  int64_t disk_tier = 0;
};

class PrefixTier {
 public:
  using Options = PrefixTierOptions;
  // What the metrics say. The first is of now, the others since the start.
  struct Counts {
    int64_t disk_bytes = 0;
    int64_t num_hits = 0;        // prefixes brought back to the arena
    int64_t num_disk_reads = 0;  // prefixes brought back to host memory
    int64_t restored_tokens = 0;
    int64_t host_evictions = 0;  // snapshots dropped for others; their files stay
    int64_t disk_evictions = 0;
    int64_t lost = 0;  // prefixes gone from the arena before they were copied
    // Errors, by what happened.
    int64_t full_disk = 0;
    int64_t failed_writes = 0;
    int64_t failed_reads = 0;
    int64_t torn_files = 0;
    int64_t foreign_files = 0;
  };
  struct Entry;

  // The pointers must outlive the tier. Keeps nothing where `host` has no bytes.
  PrefixTier(const Options& options, Cache* cache, HostTier* host, StepCopies* copies, const CopyCost* cost);
  ~PrefixTier();
  PrefixTier(const PrefixTier&) = delete;
  PrefixTier& operator=(const PrefixTier&) = delete;

  // Queues the prefix `tokens`, which a sequence leaves in the index, to be copied when its turn comes.
  void EnqueueForOffload(absl::string_view salt, absl::Span<const int32_t> tokens, absl::Time now);

  // Takes in what the disk has done. REQUIRES: between steps.
  void Poll(absl::Time now);
  // Copies the next prefix that is due, at once. For times when nothing runs. `needed_bytes` of the arena are about to
  // be taken, so prefixes are due that much earlier.
  void OffloadNow(absl::Time now, int64_t needed_bytes);
  // Has it copied beside the step that follows, with at most half of what the step's budget has left.
  void StartOffload(absl::Time now, int64_t needed_bytes);
  // Takes in that `size_bytes` of it were copied.
  void OnOffloaded(int64_t size_bytes, absl::Time now);
  // Writes all that is queued to the disk, if there is one, and waits for it where host memory is full meanwhile: for
  // half a minute in all. Calls enter(kCopy) before each copy, and enter(kIdle) before that wait.
  void OffloadAll(absl::Time now, absl::FunctionRef<void(StepPhase)> enter);
  // When OffloadNow or Poll have something to do, although no sequence is there.
  absl::Time NextIdleWork(absl::Time now) const;

  // The entry that serves most of a sequence's first tokens: `num_tokens` of them, a multiple of `multiple`.
  struct Hit {
    Entry* entry = nullptr;  // null: nothing. Valid until the tier's next method.
    int64_t num_tokens = 0;
  };
  Hit Find(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t multiple, absl::Time now);
  // Whether bringing the hit back costs less than computing `num_tokens` tokens.
  bool WorthFetching(const Hit& hit, int64_t num_tokens) const;
  // Brings the entry's snapshot to host memory, now or in time. kNoRoom: host memory is full of what must stay.
  enum class Fetched { kHere, kComing, kNoRoom };
  Fetched Fetch(Entry* entry);
  // The snapshot of an entry that is here. The entry stays as long as it is pinned.
  const CacheSnapshot& Pin(Entry* entry);
  void Unpin(Entry* entry);
  // A sequence resumes from an entry, and has `num_tokens` more than the arena held.
  void OnRestored(int64_t num_tokens);

  // Drops the prefixes of `salt`, or all. CallWhenGone calls `done` once no file of those that were dropped is left;
  // see PrefixDisk::Sync. REQUIRES: none of them is pinned; between steps.
  FreedBytes DropAll(std::optional<absl::string_view> salt);
  void CallWhenGone(std::function<void(const absl::Status&)> done);

  // Drops snapshots until `size_bytes` of the host tier are free. False: dropping all that it may is not enough.
  bool MakeRoom(int64_t size_bytes);

  const Counts& counts() const { return counts_; }
  int64_t disk_limit_bytes() const { return options_.disk == nullptr ? 0 : options_.disk_limit_bytes; }

 private:
  // kArena: queued, not copied yet.
  enum Place { kArena, kHost, kDisk, kNumPlaces };
  // A salt and tokens, which order the entries.
  struct View {
    absl::string_view salt;
    absl::Span<const int32_t> tokens;
  };
  struct Less {
    using is_transparent = void;
    bool operator()(const std::unique_ptr<Entry>& a, const std::unique_ptr<Entry>& b) const;
    bool operator()(const std::unique_ptr<Entry>& a, const View& b) const;
    bool operator()(const View& a, const std::unique_ptr<Entry>& b) const;
  };

  bool on() const { return host_->limit_bytes > 0; }
  Entry* Add(absl::string_view salt, absl::Span<const int32_t> tokens, Place place, absl::Time now);
  void MoveTo(Place place, Entry* entry);
  void Touch(Entry* entry, absl::Time now);
  void Erase(Entry* entry);
  // Drops the entry's snapshot. The entry moves to where its file is, or is erased.
  void DropSnapshot(Entry* entry);
  void DropFile(Entry* entry);
  // The entry to be copied next, with room for its snapshot. Null: none is due, or there is no room.
  Entry* NextToOffload(absl::Time now, int64_t needed_bytes);
  // Copies the rest of offloading_.
  void FinishOffload(absl::Time now);
  // Forgets an entry that the arena does not hold any more, or for which there is no room.
  void Lose(Entry* entry) {
    ++counts_.lost;
    Erase(entry);
  }
  void StartWriting(Entry* entry, absl::Time now);
  // Drops the tenant's oldest files until its quota has room for `size_bytes`. False: they are too many.
  bool MakeRoomInQuota(const std::string& salt, int64_t size_bytes);
  void DropTooOld(absl::Time now);
  void OnRead(Entry* entry, PrefixDisk::Result* result);
  void CountError(const absl::Status& status, bool written);
  // If snapshots serve their beginnings, drops these of the entries that `entry` makes superfluous. A file stays until
  // that of `entry` is written.
  enum class Shorter { kInArena, kWithoutFile, kAll };
  void DropShorter(Entry* entry, Shorter which);

  const Options options_;
  Cache* const cache_;
  HostTier* const host_;
  StepCopies* const copies_;
  const CopyCost* const cost_;
  const bool serves_beginnings_;  // any snapshot serves all of its beginnings
  std::set<std::unique_ptr<Entry>, Less> entries_;
  std::list<Entry*> places_[kNumPlaces];          // least recently used first
  std::unordered_map<uint64_t, Entry*> by_file_;  // null: dropped while the disk is at work on it
  Entry* offloading_ = nullptr;                   // partly copied out of the arena
  int64_t queued_bytes_ = 0;                      // bytes of the arena that entries in kArena may hold
  int64_t num_disk_busy_ = 0;                     // files being written or read
  absl::Time next_write_ = absl::InfinitePast();  // not before; moves when a write fails
  absl::Time next_look_ = absl::InfinitePast();   // for files that are too old
  RunningRate reads_;                             // bytes of the disk
  Counts counts_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_PREFIX_TIER_H_
