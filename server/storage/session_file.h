// A session as a file, and back: an image file (server/storage/image_file.h) whose header is a SessionFile
// (proto/berth/v1/session_file.proto). Functions; thread-safe; those that touch the disk block.
#ifndef BERTH_SERVER_STORAGE_SESSION_FILE_H_
#define BERTH_SERVER_STORAGE_SESSION_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/session_file.pb.h"
#include "cache/image.h"
#include "scheduler/request.h"
#include "server/api/validation.h"

namespace berth {

// The header of a request that has not begun; `tenant` is its cache_salt.
v1::SessionFile MakeSessionFile(const ValidatedRequest& request, absl::string_view session_id, absl::string_view model);
// Fills in how far it came; the image's bytes stay outside.
void SetProgress(const Progress& progress, v1::SessionFile* file);

// The request that goes on from `file` and the cache that came with it: all but key, arrival and deadline.
ValidatedRequest ResumedRequest(const v1::SessionFile& file, CacheImage image);

// Bytes on the disk.
int64_t SessionFileBytes(const v1::SessionFile& file, const CacheImage& image);

// Writes and syncs `path`. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE for other failures; both name the cause,
// and leave no file.
absl::Status WriteSessionFile(const std::string& path, const v1::SessionFile& file, const CacheImage& image);

struct SessionFileContent {
  v1::SessionFile file;
  CacheImage image;
  int64_t size_bytes = 0;
};
// NOT_FOUND; FAILED_PRECONDITION: another version; DATA_LOSS: torn or damaged; UNAVAILABLE: cannot be read; all name
// the reason. `with_image` false: only the header is read and checked.
absl::StatusOr<SessionFileContent> ReadSessionFile(const std::string& path, bool with_image);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSION_FILE_H_
