// A file of the disk tier: its bytes, with the checksums made right.
#include "server/storage/prefix_file.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/snapshot_frame.h"
#include "tests/testing/tiny_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const cache = new berth::TinyCache(berth::HybridLayers(), /*size=*/64);
  const berth::CachePlan& plan = cache->cache->plan();
  const std::string path = berth::FuzzFolder() + "/prefix";
  std::string bytes = berth::TextOf(data, size);
  berth::RepairChecksums(&bytes);
  berth::WriteFile(path, bytes);
  const auto header = berth::ReadPrefixFile(path, plan, nullptr);
  berth::CacheSnapshot snapshot;
  const auto whole = berth::ReadPrefixFile(path, plan, &snapshot);
  FUZZ_CHECK(header.ok() || !whole.ok(), "the header alone cannot be read");
  if (!whole.ok()) return 0;
  FUZZ_CHECK(!whole->tokens.empty() && whole->size_bytes == static_cast<int64_t>(size), "sizes");
  FUZZ_CHECK(snapshot.size_bytes == 0 || snapshot.bytes != nullptr, "no bytes");
  return 0;
}
