// The files of --disk_tier: prefixes that host memory has no room for, one each. A thread of its own does all reading
// and writing: reads first, the rest in order. The engine's never waits for the disk.
//
// A file is written under a temporary name, synced and renamed, and then the folder is synced. A crash therefore leaves
// a whole file, or nothing that the next start would mistake for one. A file that is torn, or of another model or
// version, is removed at the start or when it is read; the log says so in one line. Files with names of another form
// are left alone.
//
// One server at a time may use the folder: a lock on its file `lock`, which ends with the process, keeps others out.
#ifndef BERTH_SERVER_STORAGE_DISK_TIER_H_
#define BERTH_SERVER_STORAGE_DISK_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/work_queue.h"
#include "cache/spec.h"
#include "scheduler/tiers/prefix_disk.h"
#include "server/storage/disk_file.h"

namespace berth {

class DiskTier final : public PrefixDisk {
 public:
  struct Options {
    std::string folder;    // made where it does not exist
    std::string identity;  // CacheIdentity of this server; only its files are used
    CachePlan plan;
  };
  // Reads the headers of the files that are there. FAILED_PRECONDITION naming the folder and what is wrong with it, or
  // that another server uses it.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(Options options);

  Found TakeFound() override { return std::move(found_); }
  int64_t FileBytes(absl::string_view salt, int64_t num_tokens, int64_t snapshot_bytes) const override;
  uint64_t Write(absl::string_view salt, absl::Span<const int32_t> tokens,
                 std::shared_ptr<const CacheSnapshot> snapshot) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Read(uint64_t id) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t id) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Sync(std::function<void(const absl::Status&)> done) override ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Result> TakeResults() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit DiskTier(Options options) : options_(std::move(options)) {}

  absl::Status Lock();
  absl::Status Scan();
  std::string PathOf(uint64_t id) const;
  // The methods below run on the tier's thread.
  absl::Status WriteFile(uint64_t id, absl::string_view salt, absl::Span<const int32_t> tokens,
                         const CacheSnapshot& snapshot);
  absl::StatusOr<std::shared_ptr<CacheSnapshot>> ReadFile(uint64_t id);
  // UNAVAILABLE, and the file is kept in mind: it could not be removed.
  absl::Status RemoveFile(uint64_t id);

  const Options options_;
  std::unique_ptr<berth::File> lock_;
  Found found_;
  uint64_t last_id_ = 0;  // the engine thread's
  // The tier's thread's:
  bool failing_ = false;          // the last write failed
  std::set<uint64_t> unremoved_;  // files that could not be removed; each Sync tries again

  Mutex mutex_;
  std::vector<Result> results_ ABSL_GUARDED_BY(mutex_);

  WorkQueue queue_;
};

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_DISK_TIER_H_
