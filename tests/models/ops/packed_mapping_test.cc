// Files of packed matrices that no server wrote, with hashes that are right.
#include "models/ops/packed_mapping.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "cache/dtype.h"

namespace berth {
namespace {

const std::string kIdentity(32, 'a');

// A file with the entries, which are named "0", "1" and so on, and `data_bytes` zeros behind the head.
std::shared_ptr<const PackedMapping> OpenFileOf(std::vector<PackedEntry> entries, size_t data_bytes) {
  std::string names;
  for (PackedEntry& e : entries) {
    const std::string zeros(static_cast<size_t>(e.size_bytes()), '\0');
    e.name_bytes = 1;
    e.hash = HashOfPacked(zeros.data(), e.panel_bytes, zeros.data() + e.panel_bytes, e.scale_bytes);
    names += std::to_string(names.size());
  }
  const auto count = static_cast<int64_t>(entries.size());
  const auto name_bytes = static_cast<int64_t>(names.size());
  PackedHeader header = {.magic = {}, .identity = {}, .count = count, .name_bytes = name_bytes};
  std::memcpy(header.magic, kPackedMagic, sizeof(header.magic));
  std::memcpy(header.identity, kIdentity.data(), sizeof(header.identity));
  std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const PackedEntry& e : entries) file.append(reinterpret_cast<const char*>(&e), sizeof(e));
  file += names;
  AppendHeadHash(&file);
  file.resize(static_cast<size_t>(PackedHeadBytes(count, name_bytes)) + data_bytes);
  const std::string path = testing::TempDir() + "/packed";
  std::ofstream(path, std::ios::binary) << file;
  return PackedMapping::Open(path, kIdentity, /*threads=*/nullptr);
}

PackedEntry Float32(int64_t inputs, int64_t outputs, int64_t panel_bytes) {
  return {.type = 6,
          .dtype = static_cast<int32_t>(DType::kFloat32),
          .inputs = inputs,
          .outputs = outputs,
          .offset = 4096,
          .panel_bytes = panel_bytes,
          .scale_bytes = 0,
          .name_bytes = 0,
          .hash = 0};
}

TEST(PackedMapping, FindsWhatLiesWithinTheFile) {
  const auto mapping = OpenFileOf({Float32(2, 3, 256)}, 256);
  ASSERT_NE(mapping, nullptr);
  ASSERT_NE(mapping->Find("0"), nullptr);
  EXPECT_EQ(mapping->Find("0")->inputs, 2);
  EXPECT_EQ(mapping->Find("1"), nullptr);
  EXPECT_EQ(OpenFileOf({Float32(2, 3, 256)}, 255), nullptr);
}

TEST(PackedMapping, MapsAFileWithoutMatrices) {
  const auto mapping = OpenFileOf({}, 0);
  ASSERT_NE(mapping, nullptr);
  EXPECT_TRUE(mapping->entries().empty());
}

// 2^26 panels of 2^38 bytes: in 64 bits, no byte at all.
TEST(PackedMapping, RefusesAShapeWhoseSizeOverflows) {
  EXPECT_EQ(OpenFileOf({Float32(int64_t{1} << 31, int64_t{1} << 31, 0)}, 64), nullptr);
}

}  // namespace
}  // namespace berth
