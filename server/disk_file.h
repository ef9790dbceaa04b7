// Files that are written as a whole, with a checksum at their end, and read back. Thread-compatible; everything blocks.
#ifndef BERTH_SERVER_DISK_FILE_H_
#define BERTH_SERVER_DISK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/content_hash.h"

namespace berth {

// A descriptor that closes itself.
class File {
 public:
  // open(2); what it makes is the user's alone.
  File(const std::string& path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }  // -1: it could not be opened, and errno says why

 private:
  const int fd_;
};

// What errno says of `path`. RESOURCE_EXHAUSTED: the disk is full; NOT_FOUND; UNAVAILABLE for the rest.
absl::Status DiskError(absl::string_view what, const std::string& path);

// Reads or writes a file from the start, and hashes what passes.
class HashedFile {
 public:
  static constexpr int64_t kHashBytes = sizeof(ContentHash::Digest);

  // `fd` must outlive this.
  explicit HashedFile(int fd) : fd_(fd) {}

  bool Write(const void* data, size_t size);
  bool WriteHash();
  // False: an error, or the file's end came first.
  bool Read(void* data, size_t size);
  // Whether the hash of all that was read comes next.
  bool HashAgrees();

 private:
  const int fd_;
  ContentHash hash_;
};

// Gives the file at `from`, which is on the disk, the name `to` in the same folder; a crash leaves it under one of the
// two. UNAVAILABLE naming the cause.
absl::Status RenameOnDisk(const std::string& from, const std::string& to);
// What was removed from the folder or renamed in it is on the disk after this.
absl::Status SyncFolder(const std::string& folder);

}  // namespace berth

#endif  // BERTH_SERVER_DISK_FILE_H_
