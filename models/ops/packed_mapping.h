// The file of packed matrices (models/ops/matmul/packed_weights.h): its format, and how it is mapped and checked.
// Torch-free. A mapping is immutable; thread-safe.
//
// Format, in the processor's own byte order: the header, an entry for each matrix, the matrices' names, and the hash of
// all these. From the next page on follow the matrices: the panels of each, from a cache line on, and its scales.
#ifndef BERTH_MODELS_OPS_PACKED_MAPPING_H_
#define BERTH_MODELS_OPS_PACKED_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "models/step/thread_pool.h"

namespace berth {

inline constexpr char kPackedMagic[8] = {'b', 'e', 'r', 't', 'h', 'p', 'w', '2'};

struct PackedHeader {
  char magic[sizeof(kPackedMagic)];
  char identity[32];
  int64_t count;
  int64_t name_bytes;  // of all names
};

struct PackedEntry {
  int32_t type, dtype;  // at::ScalarType of inputs and outputs; DType
  int64_t inputs, outputs;
  int64_t offset;  // of the panels, which the scales follow
  int64_t panel_bytes, scale_bytes;
  int64_t name_bytes;
  uint64_t hash;

  int64_t size_bytes() const { return panel_bytes + scale_bytes; }
};

// Where the first matrix may begin.
int64_t PackedHeadBytes(int64_t count, int64_t name_bytes);
// The hash of a matrix.
uint64_t HashOfPacked(const char* panels, int64_t panel_bytes, const char* scales, int64_t scale_bytes);
// Completes the head: header, entries and names.
void AppendHeadHash(std::string* head);

class PackedMapping {
 public:
  // Null: the file is not there, or not of `identity`, or damaged. `threads` hash it; null: this thread does.
  static std::shared_ptr<const PackedMapping> Open(const std::string& path, absl::string_view identity,
                                                   ThreadPool* threads);
  ~PackedMapping();
  PackedMapping(const PackedMapping&) = delete;
  PackedMapping& operator=(const PackedMapping&) = delete;

  // Null: it has no such matrix. What the entry says lies within the file.
  const PackedEntry* Find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &entries_[found->second];
  }
  const std::vector<PackedEntry>& entries() const { return entries_; }
  // The file's; not to be written.
  char* bytes() const { return bytes_; }

 private:
  PackedMapping() = default;
  bool Map(const std::string& path);
  bool ReadEntries(absl::string_view identity);
  // REQUIRES: the head is whole.
  bool ReadNames(const char* names, int64_t left);
  bool Intact(ThreadPool* threads) const;

  char* bytes_ = nullptr;
  int64_t size_ = 0;
  std::vector<PackedEntry> entries_;
  absl::flat_hash_map<std::string, size_t> index_;  // of the entry, by name
};

}  // namespace berth

#endif  // BERTH_MODELS_OPS_PACKED_MAPPING_H_
