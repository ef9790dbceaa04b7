// Where prefixes lie that host memory has no room for: files, as the scheduler sees them. Methods are the engine
// thread's and never wait; the work is done elsewhere, one after another, and its results are fetched.
#ifndef BERTH_SCHEDULER_PREFIX_DISK_H_
#define BERTH_SCHEDULER_PREFIX_DISK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/image.h"

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
  };
  struct Found {
    std::vector<File> files;  // least recently used first
    // Removed: damaged or half-written; of another model or of another way to keep its cache, version included.
    int64_t num_torn = 0;
    int64_t num_foreign = 0;
  };
  virtual Found TakeFound() = 0;

  // What the file of such a prefix takes.
  virtual int64_t FileBytes(absl::string_view salt, int64_t num_tokens, int64_t image_bytes) const = 0;

  // Each of these two gives one Result in time. Write returns the id of a new file.
  virtual uint64_t Write(absl::string_view salt, absl::Span<const int32_t> tokens,
                         std::shared_ptr<const CacheImage> image) = 0;
  virtual void Read(uint64_t id) = 0;
  // After what was asked for before.
  virtual void Remove(uint64_t id) = 0;

  struct Result {
    uint64_t id = 0;
    bool written = false;  // else read
    // RESOURCE_EXHAUSTED: the disk is full; DATA_LOSS: the file is torn; UNAVAILABLE: anything else. The file is gone.
    absl::Status status;
    std::shared_ptr<CacheImage> image;  // what was read
    absl::Duration time;                // that it took
  };
  virtual std::vector<Result> TakeResults() = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_PREFIX_DISK_H_
