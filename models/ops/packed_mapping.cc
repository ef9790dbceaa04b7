#include "models/ops/packed_mapping.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "models/kernels/cpu/panels.h"
#include "models/step/cache_line.h"

namespace berth {
namespace {

using ops::kCacheLine;
using ops::RoundUp;

constexpr int64_t kPage = 4096;
constexpr int64_t kMaxMatrices = 1 << 24;
constexpr int64_t kMaxNameBytes = int64_t{1} << 32;

// What is hashed of the head.
int64_t HashedBytes(int64_t count, int64_t name_bytes) {
  return static_cast<int64_t>(sizeof(PackedHeader) + count * sizeof(PackedEntry)) + name_bytes;
}

// Whether the panels and scales have the size that the shape needs, and lie within the file.
bool Fits(const PackedEntry& e, int64_t file_bytes) {
  constexpr int64_t kMaxSize = int64_t{1} << 31;
  const auto dtype = static_cast<DType>(e.dtype);
  if (e.dtype < 0 || dtype > DType::kInt4) return false;
  if (e.inputs <= 0 || e.outputs <= 0 || e.inputs > kMaxSize || e.outputs > kMaxSize) return false;
  // The product may not fit 64 bits.
  const int64_t panel = ops::PanelBytes(dtype, e.inputs);
  if (e.panel_bytes % panel != 0 || e.panel_bytes / panel != ops::PanelCount(e.outputs)) return false;
  if (e.scale_bytes != (IsQuantised(dtype) ? e.outputs * 4 : 0)) return false;
  return e.offset > 0 && e.offset % kCacheLine == 0 && e.offset <= file_bytes - e.size_bytes();
}

}  // namespace

int64_t PackedHeadBytes(int64_t count, int64_t name_bytes) {
  return RoundUp(HashedBytes(count, name_bytes) + static_cast<int64_t>(sizeof(uint64_t)), kPage);
}

uint64_t HashOfPacked(const char* panels, int64_t panel_bytes, const char* scales, int64_t scale_bytes) {
  return XXH3_64bits_withSeed(scales, static_cast<size_t>(scale_bytes),
                              XXH3_64bits(panels, static_cast<size_t>(panel_bytes)));
}

void AppendHeadHash(std::string* head) {
  const uint64_t hash = XXH3_64bits(head->data(), head->size());
  head->append(reinterpret_cast<const char*>(&hash), sizeof(hash));
}

std::shared_ptr<const PackedMapping> PackedMapping::Open(const std::string& path, absl::string_view identity,
                                                         ThreadPool* threads) {
  std::shared_ptr<PackedMapping> mapping(new PackedMapping);
  if (!mapping->Map(path) || !mapping->ReadEntries(identity) || !mapping->Intact(threads)) return nullptr;
  return mapping;
}

PackedMapping::~PackedMapping() {
  if (bytes_ != nullptr) munmap(bytes_, static_cast<size_t>(size_));
}

bool PackedMapping::Map(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat stat = {};
  if (fstat(file, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_size < PackedHeadBytes(0, 0)) return false;
  void* const mapped = mmap(nullptr, static_cast<size_t>(stat.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) return false;
  bytes_ = static_cast<char*>(mapped);
  size_ = stat.st_size;
  madvise(mapped, static_cast<size_t>(size_), MADV_HUGEPAGE);  // what has to be read from the disk comes in huge pages
  return true;
}

bool PackedMapping::ReadEntries(absl::string_view identity) {
  PackedHeader header;
  std::memcpy(&header, bytes_, sizeof(header));
  if (std::memcmp(header.magic, kPackedMagic, sizeof(kPackedMagic)) != 0 ||
      identity.size() != sizeof(header.identity) ||
      std::memcmp(header.identity, identity.data(), identity.size()) != 0 || header.count < 0 ||
      header.count > kMaxMatrices || header.name_bytes < 0 || header.name_bytes > kMaxNameBytes ||
      PackedHeadBytes(header.count, header.name_bytes) > size_) {
    return false;
  }
  const auto head = static_cast<size_t>(HashedBytes(header.count, header.name_bytes));
  uint64_t hash = 0;
  std::memcpy(&hash, bytes_ + head, sizeof(hash));
  if (hash != XXH3_64bits(bytes_, head)) return false;
  entries_.resize(static_cast<size_t>(header.count));
  if (header.count > 0) {
    std::memcpy(entries_.data(), bytes_ + sizeof(PackedHeader), entries_.size() * sizeof(PackedEntry));
  }
  return ReadNames(bytes_ + HashedBytes(header.count, 0), header.name_bytes) &&
         std::all_of(entries_.begin(), entries_.end(), [&](const PackedEntry& e) { return Fits(e, size_); });
}

bool PackedMapping::ReadNames(const char* names, int64_t left) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const int64_t count = entries_[i].name_bytes;
    if (count < 0 || count > left) return false;
    if (!index_.emplace(std::string(names, static_cast<size_t>(count)), i).second) return false;
    names += count;
    left -= count;
  }
  return left == 0;
}

bool PackedMapping::Intact(ThreadPool* threads) const {
  std::atomic<bool> intact = true;
  ShareItems(threads, static_cast<int64_t>(entries_.size()), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) {
      const PackedEntry& e = entries_[static_cast<size_t>(i)];
      const char* const panels = bytes_ + e.offset;
      if (HashOfPacked(panels, e.panel_bytes, panels + e.panel_bytes, e.scale_bytes) != e.hash) intact = false;
    }
  });
  return intact;
}

}  // namespace berth
