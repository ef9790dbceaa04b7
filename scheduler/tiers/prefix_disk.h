// The files of the disk tier, as the scheduler sees them: copies of prefixes that are in host memory, or were. Engine
// thread only. No method waits: the work is done elsewhere, reads first and the rest in order, and its results are
// fetched.
#ifndef BERTH_SCHEDULER_TIERS_PREFIX_DISK_H_
#define BERTH_SCHEDULER_TIERS_PREFIX_DISK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/snapshot.h"

namespace berth {

class PrefixDisk {
 public:
  virtual ~PrefixDisk() = default;

  // A file that was there at the start.
  struct File {
    uint64_t id = 0;
    std::string salt;
    std::vector<int32_t> tokens;
    int64_t size_bytes = 0;
    absl::Time used = absl::InfinitePast();  // last
  };
  struct Found {
    std::vector<File> files;  // least recently used first
    // Files that were removed.
    int64_t num_torn = 0;     // damaged or half-written
    int64_t num_foreign = 0;  // of another model, another cache layout or another version
  };
  virtual Found TakeFound() = 0;

  // The size of the file for such a prefix.
  virtual int64_t FileBytes(absl::string_view salt, int64_t num_tokens, int64_t snapshot_bytes) const = 0;

  // Each of these two gives one Result later. Write returns the id of a new file.
  virtual uint64_t Write(absl::string_view salt, absl::Span<const int32_t> tokens,
                         std::shared_ptr<const CacheSnapshot> snapshot) = 0;
  virtual void Read(uint64_t id) = 0;
  // Removes a file, after all that was asked for before.
  virtual void Remove(uint64_t id) = 0;
  // Calls `done` once all that was asked for before is done, on a thread of the disk. The files removed so far are then
  // gone for good. UNAVAILABLE names one that could not be removed.
  virtual void Sync(std::function<void(const absl::Status&)> done) = 0;

  struct Result {
    uint64_t id = 0;
    bool written = false;  // else it was read
    // RESOURCE_EXHAUSTED: the disk is full; DATA_LOSS: the file is torn; UNAVAILABLE: anything else. After an error the
    // file is gone.
    absl::Status status;
    std::shared_ptr<CacheSnapshot> snapshot;  // what was read
    absl::Duration time;                      // how long it took
  };
  virtual std::vector<Result> TakeResults() = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_PREFIX_DISK_H_
