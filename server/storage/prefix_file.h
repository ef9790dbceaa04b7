// A prefix's cache as a file, and back. Functions; thread-safe; all but CacheIdentity block on the disk.
//
// It is a snapshot file (server/storage/snapshot_file.h) whose header is: identity and salt, each u64 bytes and the
// bytes; u64 tokens and each as i32. The snapshot's layout follows from the plan, which the identity names.
#ifndef BERTH_SERVER_STORAGE_PREFIX_FILE_H_
#define BERTH_SERVER_STORAGE_PREFIX_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/snapshot.h"
#include "cache/spec.h"

namespace berth {

// Names what must be equal for one process to use another's cache: the checkpoint, the cache's layout and data type,
// the version of its contents, and `anchored_chunk_tokens`. The last says where chunks end if hits must be exact to the
// bit; 0: they need not be.
std::string CacheIdentity(absl::string_view model_fingerprint, const CachePlan& plan, int64_t anchored_chunk_tokens);

struct PrefixFile {
  std::string identity;
  std::string salt;
  std::vector<int32_t> tokens;
  int64_t size_bytes = 0;  // of the file
};

// Bytes on the disk.
int64_t PrefixFileBytes(absl::string_view identity, absl::string_view salt, int64_t num_tokens, int64_t snapshot_bytes);

// Writes and syncs `path`. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE for other failures; both name the cause,
// and leave no file.
absl::Status WritePrefixFile(const std::string& path, absl::string_view identity, absl::string_view salt,
                             absl::Span<const int32_t> tokens, const CacheSnapshot& snapshot);

// NOT_FOUND; FAILED_PRECONDITION: another version; DATA_LOSS: torn or damaged; UNAVAILABLE: cannot be read; all name
// the reason. Null `snapshot`: only the header is read and checked. The snapshot has the layout of `plan`.
absl::StatusOr<PrefixFile> ReadPrefixFile(const std::string& path, const CachePlan& plan, CacheSnapshot* snapshot);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_PREFIX_FILE_H_
