// Makes the checksums of a snapshot file's bytes right (server/storage/snapshot_file.h), so that a fuzzer comes past
// them.
#ifndef BERTH_TESTS_FUZZ_SNAPSHOT_FRAME_H_
#define BERTH_TESTS_FUZZ_SNAPSHOT_FRAME_H_

#include <cstring>
#include <string>

#include "server/storage/content_hash.h"

namespace berth {

inline void HashInto(const std::string& bytes, size_t begin, size_t end, size_t place, std::string* out) {
  ContentHash hash;
  hash.Add(bytes.data() + begin, end - begin);
  const ContentHash::Digest digest = hash.digest();
  std::memcpy(out->data() + place, digest.data(), digest.size());
}

inline void RepairChecksums(std::string* file) {
  constexpr size_t kBeginning = 48;
  constexpr size_t kHeaderBytesAt = 16;
  constexpr size_t kHeaderHashAt = 32;
  constexpr size_t kHashBytes = sizeof(ContentHash::Digest);
  if (file->size() < kBeginning + kHashBytes) return;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file->data() + kHeaderBytesAt, sizeof(header_bytes));
  if (header_bytes > file->size() - kBeginning - kHashBytes) return;
  HashInto(*file, kBeginning, kBeginning + header_bytes, kHeaderHashAt, file);
  HashInto(*file, 0, file->size() - kHashBytes, file->size() - kHashBytes, file);
}

}  // namespace berth

#endif  // BERTH_TESTS_FUZZ_SNAPSHOT_FRAME_H_
