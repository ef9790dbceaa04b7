#include "server/storage/prefix_file.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/storage/snapshot_file.h"

namespace berth {
namespace {

// The version of the header.
constexpr SnapshotFormat kFormat = {.magic = "BERTHPRE", .version = 2, .oldest_version = 2, .what = "prefix"};

// Raise it when a release computes the bits of a cache differently: files of the release before are then not used.
constexpr int kContentsVersion = 1;

void Append(const void* data, size_t size, size_t count, std::string* out) {
  const uint64_t n = count;
  out->append(reinterpret_cast<const char*>(&n), sizeof(n));
  out->append(static_cast<const char*>(data), size * count);
}

// Takes what Append wrote off the front of `in`. False: it is not there.
template <typename Values>
bool Take(absl::string_view* in, Values* values) {
  constexpr size_t kSize = sizeof(typename Values::value_type);
  uint64_t n = 0;
  if (in->size() < sizeof(n)) return false;
  std::memcpy(&n, in->data(), sizeof(n));
  in->remove_prefix(sizeof(n));
  if (n > in->size() / kSize) return false;
  values->resize(n);
  if (n > 0) std::memcpy(values->data(), in->data(), n * kSize);
  in->remove_prefix(n * kSize);
  return true;
}

}  // namespace

std::string CacheIdentity(absl::string_view model_fingerprint, const CachePlan& plan, int64_t anchored_chunk_tokens) {
  std::string identity = absl::StrCat(model_fingerprint, " contents ", kContentsVersion, " chunks ",
                                      anchored_chunk_tokens, " blocks ", plan.block_tokens);
  for (const CacheGroup& group : plan.groups) {
    const KvSpec& kv = group.kv;
    absl::StrAppend(&identity, " ", CacheKindName(group.kind), ":", DTypeName(kv.dtype), ":", kv.kv_heads, "x",
                    kv.key_dim, "x", kv.value_dim, ":", kv.window, ":", kv.sink_tokens, ":", kv.chunk, ":",
                    group.unit_bytes, ":", absl::StrJoin(group.layers, ","));
  }
  for (const LayerCacheSlot& slot : plan.layers) {
    absl::StrAppend(&identity, " ", slot.key_offset, ",", slot.value_offset, ",", slot.recent_key_offset, ",",
                    slot.recent_value_offset, ",", absl::StrJoin(slot.state_offsets, ","));
  }
  if (!plan.checkpoints.empty()) absl::StrAppend(&identity, " checkpoints int8:", kCheckpointGroup);
  for (const CheckpointTensor& tensor : plan.checkpoints) {
    absl::StrAppend(&identity, " ", tensor.offset, ",", tensor.scale_offset);
  }
  return identity;
}

int64_t PrefixFileBytes(absl::string_view identity, absl::string_view salt, int64_t num_tokens,
                        int64_t snapshot_bytes) {
  const auto texts = static_cast<int64_t>(3 * sizeof(uint64_t) + identity.size() + salt.size());
  return SnapshotFileBytes(texts + num_tokens * static_cast<int64_t>(sizeof(int32_t)), snapshot_bytes);
}

absl::Status WritePrefixFile(const std::string& path, absl::string_view identity, absl::string_view salt,
                             absl::Span<const int32_t> tokens, const CacheSnapshot& snapshot) {
  std::string header;
  Append(identity.data(), 1, identity.size(), &header);
  Append(salt.data(), 1, salt.size(), &header);
  Append(tokens.data(), sizeof(int32_t), tokens.size(), &header);
  return WriteSnapshotFile(path, kFormat, header, snapshot);
}

absl::StatusOr<PrefixFile> ReadPrefixFile(const std::string& path, const CachePlan& plan, CacheSnapshot* snapshot) {
  absl::StatusOr<SnapshotFile> in = SnapshotFile::Open(path, kFormat);
  if (!in.ok()) return in.status();
  absl::string_view rest = in->header();
  PrefixFile file = {.size_bytes = in->size_bytes()};
  if (!Take(&rest, &file.identity) || !Take(&rest, &file.salt) || !Take(&rest, &file.tokens) || !rest.empty() ||
      file.tokens.empty()) {
    return in->Torn("its header is not a prefix's");
  }
  if (snapshot == nullptr) return file;
  *snapshot = PrefixLayout(plan, static_cast<int64_t>(file.tokens.size()));
  if (absl::Status status = in->ReadSnapshot(snapshot); !status.ok()) return status;
  return file;
}

}  // namespace berth
