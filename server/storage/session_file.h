// Reads and writes a session's file: a snapshot file (server/storage/snapshot_file.h) whose header is a SessionFile
// (proto/berth/v1/session_file.proto). Functions; thread-safe; those that touch the disk block.
#ifndef BERTH_SERVER_STORAGE_SESSION_FILE_H_
#define BERTH_SERVER_STORAGE_SESSION_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/session_file.pb.h"
#include "cache/snapshot.h"
#include "scheduler/request.h"

namespace berth {

// Writes the progress of a request into `file`, without the bytes of its snapshot.
void SetProgress(const Progress& progress, v1::SessionFile* file);
// The progress that `file` has, without a snapshot. Its values are not checked.
Progress ReadProgress(const v1::SessionFile& file);

// Bytes on the disk.
int64_t SessionFileBytes(const v1::SessionFile& file, const CacheSnapshot& snapshot);

// Writes and syncs `path`. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE for other failures; both name the cause,
// and leave no file.
absl::Status WriteSessionFile(const std::string& path, const v1::SessionFile& file, const CacheSnapshot& snapshot);

struct SessionFileContent {
  v1::SessionFile file;
  CacheSnapshot snapshot;
  int64_t size_bytes = 0;
};
// Reads `path` and checks that it is whole; the header's values are not checked. NOT_FOUND; FAILED_PRECONDITION:
// another version; DATA_LOSS: torn or damaged; UNAVAILABLE: cannot be read; all name the reason. `with_snapshot` false:
// only the header is read.
absl::StatusOr<SessionFileContent> ReadSessionFile(const std::string& path, bool with_snapshot);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSION_FILE_H_
