// A file of packed matrices: its bytes, with the hashes made right where they can be.
#include <cstring>

#include "models/ops/packed_mapping.h"
#include "tests/fuzz/fuzz_input.h"

namespace berth {
namespace {

const std::string kIdentity(32, 'a');

// The hashes of the matrices, then that of the head.
void RepairHashes(std::string* file) {
  PackedHeader header;
  if (file->size() < sizeof(header)) return;
  std::memcpy(&header, file->data(), sizeof(header));
  const size_t most = (file->size() - sizeof(header)) / sizeof(PackedEntry);
  if (header.count < 0 || static_cast<uint64_t>(header.count) > most) return;
  const size_t names_at = sizeof(header) + static_cast<size_t>(header.count) * sizeof(PackedEntry);
  const auto inside = [&](int64_t begin, int64_t bytes) {
    const auto size = static_cast<int64_t>(file->size());
    return begin >= 0 && bytes >= 0 && begin <= size && bytes <= size - begin;
  };
  for (size_t at = sizeof(header); at < names_at; at += sizeof(PackedEntry)) {
    PackedEntry e;
    std::memcpy(&e, file->data() + at, sizeof(e));
    if (!inside(e.offset, e.panel_bytes) || !inside(e.offset + e.panel_bytes, e.scale_bytes)) continue;
    const char* const panels = file->data() + e.offset;
    e.hash = HashOfPacked(panels, e.panel_bytes, panels + e.panel_bytes, e.scale_bytes);
    std::memcpy(file->data() + at, &e, sizeof(e));
  }
  if (!inside(static_cast<int64_t>(names_at), header.name_bytes)) return;
  std::string head = file->substr(0, names_at + static_cast<size_t>(header.name_bytes));
  AppendHeadHash(&head);
  if (head.size() <= file->size()) file->replace(0, head.size(), head);
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = berth::FuzzFolder() + "/packed";
  std::string bytes = berth::TextOf(data, size);
  berth::RepairHashes(&bytes);
  berth::WriteFile(path, bytes);
  const auto mapping = berth::PackedMapping::Open(path, berth::kIdentity, /*threads=*/nullptr);
  if (mapping == nullptr) return 0;
  for (const berth::PackedEntry& e : mapping->entries()) {
    FUZZ_CHECK(e.offset > 0 && e.size_bytes() >= 0, "an offset or a size");
    FUZZ_CHECK(e.offset + e.size_bytes() <= static_cast<int64_t>(size), "an entry beyond the file");
  }
  return 0;
}
