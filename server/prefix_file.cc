#include "server/prefix_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/disk_file.h"
#include "server/version.h"

namespace berth {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is");

constexpr char kMagic[8] = {'B', 'E', 'R', 'T', 'H', 'P', 'R', 'E'};
constexpr uint32_t kFormat = 1;
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;

struct Beginning {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t header_bytes;
  uint64_t image_bytes;
  uint64_t header_hash;
};
static_assert(sizeof(Beginning) == 40);

absl::Status Torn(const std::string& path, absl::string_view how) {
  return absl::DataLossError(absl::StrCat("the prefix's file ", path, " is torn or damaged: ", how));
}

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
  std::string identity = absl::StrCat(model_fingerprint, " berth ", kVersion, " chunks ", anchored_chunk_tokens,
                                      " blocks ", plan.block_tokens);
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

int64_t PrefixFileBytes(absl::string_view identity, absl::string_view salt, int64_t num_tokens, int64_t image_bytes) {
  return static_cast<int64_t>(sizeof(Beginning) + 3 * sizeof(uint64_t) + identity.size() + salt.size()) +
         num_tokens * static_cast<int64_t>(sizeof(int32_t)) + image_bytes + HashedFile::kHashBytes;
}

absl::Status WritePrefixFile(const std::string& path, absl::string_view identity, absl::string_view salt,
                             absl::Span<const int32_t> tokens, const CacheImage& image) {
  std::string header;
  Append(identity.data(), 1, identity.size(), &header);
  Append(salt.data(), 1, salt.size(), &header);
  Append(tokens.data(), sizeof(int32_t), tokens.size(), &header);
  Beginning beginning = {.version = kFormat,
                         .zero = 0,
                         .header_bytes = header.size(),
                         .image_bytes = static_cast<uint64_t>(image.size_bytes),
                         .header_hash = XXH3_64bits(header.data(), header.size())};
  std::memcpy(beginning.magic, kMagic, sizeof(kMagic));
  absl::Status status;
  {
    const File out(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (out.fd() < 0) return DiskError("create", path);
    HashedFile hashed(out.fd());
    const bool written = hashed.Write(&beginning, sizeof(beginning)) && hashed.Write(header.data(), header.size()) &&
                         hashed.Write(image.bytes.get(), static_cast<size_t>(image.size_bytes)) && hashed.WriteHash() &&
                         fsync(out.fd()) == 0;
    if (!written) status = DiskError("write", path);
  }
  if (!status.ok()) unlink(path.c_str());
  return status;
}

absl::StatusOr<PrefixFile> ReadPrefixFile(const std::string& path, const CachePlan& plan, CacheImage* image) {
  const File in(path, O_RDONLY);
  if (in.fd() < 0) return DiskError("open", path);
  struct stat stat;
  if (fstat(in.fd(), &stat) != 0) return DiskError("read", path);
  HashedFile hashed(in.fd());
  Beginning beginning;
  if (!hashed.Read(&beginning, sizeof(beginning)) || std::memcmp(beginning.magic, kMagic, sizeof(kMagic)) != 0) {
    return Torn(path, "it does not begin as one");
  }
  if (beginning.version != kFormat) {
    return absl::FailedPreconditionError(absl::StrCat("the prefix's file ", path, " is of version ", beginning.version,
                                                      " of the format; this server reads version ", kFormat));
  }
  const uint64_t size = static_cast<uint64_t>(stat.st_size);
  const uint64_t least = sizeof(Beginning) + HashedFile::kHashBytes;
  if (beginning.header_bytes > kMaxHeaderBytes || size < least || beginning.header_bytes > size - least ||
      beginning.image_bytes != size - least - beginning.header_bytes) {
    return Torn(path, absl::StrCat("it has ", size, " bytes, not those it names"));
  }
  std::string header(beginning.header_bytes, '\0');
  absl::string_view rest = header;
  PrefixFile file = {.size_bytes = static_cast<int64_t>(size)};
  if (!hashed.Read(header.data(), header.size()) ||
      XXH3_64bits(header.data(), header.size()) != beginning.header_hash || !Take(&rest, &file.identity) ||
      !Take(&rest, &file.salt) || !Take(&rest, &file.tokens) || !rest.empty() || file.tokens.empty()) {
    return Torn(path, "its header's checksum is wrong");
  }
  if (image == nullptr) return file;
  *image = PrefixLayout(plan, static_cast<int64_t>(file.tokens.size()));
  if (image->size_bytes != static_cast<int64_t>(beginning.image_bytes)) {
    return Torn(
        path, absl::StrCat("its cache of ", beginning.image_bytes, " bytes is not of ", file.tokens.size(), " tokens"));
  }
  image->bytes = std::make_unique_for_overwrite<std::byte[]>(beginning.image_bytes);
  if (!hashed.Read(image->bytes.get(), beginning.image_bytes) || !hashed.HashAgrees()) {
    return Torn(path, "its checksum is wrong");
  }
  return file;
}

}  // namespace berth
