// What lies below the arena for prefixes: host memory, and below that files. What the prefix index gives up vanishes
// only where a copy was not worth its cost.
//
// What moves is one CacheImage of a whole prefix, up to a point from which a later sequence can go on: where a sequence
// ended, where two prompts part, the last point of the checkpoints' grid. Not single units: a sequence needs all of a
// prefix's units or, with states, nothing helps; one piece of memory and one file come and go with one copy, and
// nothing can be half there. Images that share a beginning hold it twice; where there are no states and no windows,
// whose images serve any of their beginnings, only the longest is kept.
//
// When: ahead of need. The index gives up unit by unit in the middle of a growth, where nothing may be slow. So
// prefixes are noted when a sequence leaves them behind, and copied beside steps, within the budget of all copies,
// least recently used first: those that nobody used for `idle`, and as many as it takes that those not copied yet are
// at most half of what growing sequences could take from the index and the holes. The index drops them later as ever.
// What is copied is also given to the disk, so that host memory can drop it at once when it needs the room; the disk
// drops its oldest.
//
// Where copying costs more than computing, by running averages of both (Suspender), nothing is saved nor brought back.
// Engine thread only.
//
// Invariants:
//   - an entry is in the list of one place: the fastest in which it is;
//   - HostTier::prefix_bytes is the size of the images here, those on their way in included; disk_bytes is that of the
//     files, those being written included, and at most disk_limit_bytes.
#ifndef BERTH_SCHEDULER_PREFIX_TIER_H_
#define BERTH_SCHEDULER_PREFIX_TIER_H_

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/cache.h"
#include "cache/image.h"
#include "scheduler/prefix_disk.h"
#include "scheduler/suspender.h"

namespace berth {

class PrefixTier {
 public:
  struct Options {
    PrefixDisk* disk = nullptr;  // null: host memory only. Must outlive the tier.
    int64_t disk_limit_bytes = 0;
    absl::Duration idle = absl::Minutes(1);  // a prefix that nobody used for so long moves down
  };
  // What the metrics say; the first is of now, the others since the start.
  struct Counts {
    int64_t disk_bytes = 0;
    int64_t num_hits = 0;        // prefixes brought back to the arena
    int64_t num_disk_reads = 0;  // prefixes brought back to host memory
    int64_t restored_tokens = 0;
    int64_t host_evictions = 0;  // dropped for others; what has a file lives on there
    int64_t disk_evictions = 0;
    int64_t lost = 0;  // gone from the arena before they were copied
    // Errors, by what happened.
    int64_t full_disk = 0;
    int64_t failed_writes = 0;
    int64_t failed_reads = 0;
    int64_t torn_files = 0;
    int64_t foreign_files = 0;
  };
  struct Entry;

  // The pointers must outlive the tier. Without bytes in the suspender's tier nothing is ever kept.
  PrefixTier(const Options& options, Cache* cache, Suspender* suspender);
  ~PrefixTier();
  PrefixTier(const PrefixTier&) = delete;
  PrefixTier& operator=(const PrefixTier&) = delete;

  // The index holds the cache of these tokens, of a sequence that leaves it behind.
  void Note(absl::string_view salt, absl::Span<const int32_t> tokens, absl::Time now);

  // Between steps: takes in what the disk has done.
  void Poll(absl::Time now);
  // Copies a prefix that is due, before `needed_bytes` of the arena are given away, where nothing runs.
  void Save(absl::Time now, int64_t needed_bytes);
  // Has one copied beside the step that follows, of at most half of the step's budget, by Suspender::StartCopies; and
  // takes in how many bytes of it were.
  void StartSaving(absl::Time now, int64_t needed_bytes);
  void OnCopied(int64_t size_bytes, absl::Time now);
  // Copies all that is not copied yet to where the disk finds it.
  void SaveAll(absl::Time now);
  // When Save or Poll have something to do although no sequence is there.
  absl::Time NextWork(absl::Time now) const;

  // What serves the first tokens of a sequence best: `num_tokens` of them, a multiple of `multiple`.
  struct Hit {
    Entry* entry = nullptr;  // null: nothing. Valid until the tier's next method.
    int64_t num_tokens = 0;
  };
  Hit Find(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t multiple, absl::Time now);
  // Whether bringing it back costs less than computing `num_tokens` tokens.
  bool WorthFetching(const Hit& hit, int64_t num_tokens) const;
  enum class Fetched { kHere, kComing, kNoRoom };
  // Has the entry's image in host memory, now or in time.
  Fetched Fetch(Entry* entry);
  // The image of an entry that is here; the entry stays as long as it is pinned.
  const CacheImage& Pin(Entry* entry);
  void Unpin(Entry* entry);
  // A sequence goes on from one, and has `num_tokens` more than the arena held.
  void OnRestored(int64_t num_tokens);

  // Drops images until so many bytes are free, if that can be.
  bool MakeRoom(int64_t size_bytes);

  const Counts& counts() const { return counts_; }
  int64_t disk_limit_bytes() const { return options_.disk == nullptr ? 0 : options_.disk_limit_bytes; }

 private:
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

  bool on() const { return suspender_->tier().limit_bytes > 0; }
  Entry* Add(absl::string_view salt, absl::Span<const int32_t> tokens, Place place, absl::Time now);
  void MoveTo(Place place, Entry* entry);
  void Touch(Entry* entry, absl::Time now);
  void Erase(Entry* entry);
  // Drops its image; the entry goes where its file is, or goes.
  void DropImage(Entry* entry);
  void DropFile(Entry* entry);
  // The entry to be copied next; null: none is due, or there is no room.
  Entry* NextToSave(absl::Time now, int64_t needed_bytes);
  // Copies the rest of saving_.
  void SaveRest(absl::Time now);
  void StartWriting(Entry* entry, absl::Time now);
  void OnRead(Entry* entry, PrefixDisk::Result* result);
  void CountError(const absl::Status& status, bool written);
  // Where images serve their beginnings: drops those that `entry`'s makes superfluous, of such as are not copied yet
  // or of all.
  void DropShorter(Entry* entry, bool all);

  const Options options_;
  Cache* const cache_;
  Suspender* const suspender_;
  const bool serves_beginnings_;  // any image serves all of its beginnings
  std::set<std::unique_ptr<Entry>, Less> entries_;
  std::list<Entry*> places_[kNumPlaces];  // least recently used first
  std::unordered_map<uint64_t, Entry*> by_file_;
  Entry* saving_ = nullptr;                        // partly copied out of the arena
  int64_t unsaved_bytes_ = 0;                      // that the index may hold of those in kArena
  int64_t num_disk_busy_ = 0;                      // files being written or read
  absl::Time write_again_ = absl::InfinitePast();  // after a write failed
  RunningRate reads_;                              // bytes of the disk
  Counts counts_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_PREFIX_TIER_H_
