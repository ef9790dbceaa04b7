// Files, with their errors as statuses. Thread-compatible; everything blocks.
#ifndef BERTH_SERVER_STORAGE_DISK_FILE_H_
#define BERTH_SERVER_STORAGE_DISK_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// A descriptor that closes itself.
class File {
 public:
  // Calls open(2). Only the user can read a file that this creates.
  File(const std::string& path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }  // -1: it could not be opened, and errno says why

  // Write and Read transfer all of the bytes. False: an error, which errno names, or the file's end came first.
  bool Write(const void* data, size_t size) const;
  bool Read(void* data, size_t size) const;

 private:
  const int fd_;
};

// Makes the folder and those above it. Only its owner may use the folder, and write to those above, whatever the umask
// is. A folder that was there keeps its mode; a line in the log says so if others may read it. FAILED_PRECONDITION
// naming the cause, not the folder.
absl::Status MakePrivateFolder(const std::string& folder);

// Turns errno into a status about `path`. RESOURCE_EXHAUSTED: the disk is full; NOT_FOUND; UNAVAILABLE for the rest.
absl::Status DiskError(absl::string_view what, const std::string& path);

// Gives the file at `from`, which is on the disk, the name `to` in the same folder; a crash leaves it under one of the
// two. UNAVAILABLE naming the cause.
absl::Status RenameOnDisk(const std::string& from, const std::string& to);
// Afterwards, earlier removals and renames in the folder are on the disk.
absl::Status SyncFolder(const std::string& folder);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_DISK_FILE_H_
