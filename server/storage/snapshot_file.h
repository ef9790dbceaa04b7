// A cache snapshot with a header, as one file with checksums, and back: the frame of session files and prefix files.
// Thread-compatible; what touches the disk blocks.
//
//   8 bytes  magic: the kind of file
//   u32      version of the header's form
//   u32      0
//   u64      bytes of the header        (integers are little-endian)
//   u64      bytes of the snapshot
//   16 bytes XXH3-128 of the header
//   header
//   snapshot    the units of the CacheSnapshot
//   16 bytes XXH3-128 of all before
#ifndef BERTH_SERVER_STORAGE_SNAPSHOT_FILE_H_
#define BERTH_SERVER_STORAGE_SNAPSHOT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/snapshot.h"
#include "server/storage/content_hash.h"
#include "server/storage/disk_file.h"

namespace berth {

// To change what a file holds: raise `version`, read the version before too, and store a file of the new version under
// tests/server/storage/files (stored_files_test.cc). New fields of a proto header need none of this.
struct SnapshotFormat {
  absl::string_view magic;      // 8 bytes
  uint32_t version = 0;         // of the files written
  uint32_t oldest_version = 0;  // of the files read; that of the release before
  absl::string_view what;       // in messages: "session", "prefix"
};

// Bytes on the disk.
int64_t SnapshotFileBytes(int64_t header_bytes, int64_t snapshot_bytes);

// Writes and syncs `path`. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE for other failures; both name the cause,
// and leave no file.
absl::Status WriteSnapshotFile(const std::string& path, const SnapshotFormat& format, absl::string_view header,
                               const CacheSnapshot& snapshot);

class SnapshotFile {
 public:
  // Opens `path`, reads its header and checks that. NOT_FOUND; FAILED_PRECONDITION: another version; DATA_LOSS: torn or
  // damaged; UNAVAILABLE: cannot be read; all name the reason.
  static absl::StatusOr<SnapshotFile> Open(const std::string& path, const SnapshotFormat& format);

  const std::string& header() const { return header_; }
  int64_t snapshot_bytes() const { return snapshot_bytes_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Reads the bytes of `snapshot`, which has its layout already, and checks the whole file. DATA_LOSS: damaged, or the
  // snapshot is not of snapshot_bytes(). Call it at most once.
  absl::Status ReadSnapshot(CacheSnapshot* snapshot);
  // Returns DATA_LOSS naming the file: its header is impossible.
  absl::Status Torn(absl::string_view how) const;

 private:
  SnapshotFile(std::string path, absl::string_view what);

  std::string path_;
  absl::string_view what_;
  std::unique_ptr<File> file_;
  ContentHash hash_;  // of what was read
  std::string header_;
  int64_t snapshot_bytes_ = 0;
  int64_t size_bytes_ = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SNAPSHOT_FILE_H_
