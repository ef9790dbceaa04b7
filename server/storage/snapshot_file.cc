#include "server/storage/snapshot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is");

constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;

struct Beginning {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t header_bytes;
  uint64_t snapshot_bytes;
  ContentHash::Digest header_hash;
};
static_assert(sizeof(Beginning) == 48);

ContentHash::Digest HashOf(absl::string_view bytes) {
  ContentHash hash;
  hash.Add(bytes.data(), bytes.size());
  return hash.digest();
}

bool WriteAll(const File& out, const Beginning& beginning, absl::string_view header, const CacheSnapshot& snapshot) {
  ContentHash hash;
  const auto write = [&](const void* data, size_t size) {
    hash.Add(data, size);
    return out.Write(data, size);
  };
  if (!write(&beginning, sizeof(beginning)) || !write(header.data(), header.size())) return false;
  if (snapshot.size_bytes > 0 && !write(snapshot.bytes.get(), static_cast<size_t>(snapshot.size_bytes))) return false;
  const ContentHash::Digest digest = hash.digest();
  return out.Write(digest.data(), digest.size()) && fsync(out.fd()) == 0;
}

}  // namespace

int64_t SnapshotFileBytes(int64_t header_bytes, int64_t snapshot_bytes) {
  return static_cast<int64_t>(sizeof(Beginning) + sizeof(ContentHash::Digest)) + header_bytes + snapshot_bytes;
}

absl::Status WriteSnapshotFile(const std::string& path, const SnapshotFormat& format, absl::string_view header,
                               const CacheSnapshot& snapshot) {
  Beginning beginning = {.version = format.version,
                         .zero = 0,
                         .header_bytes = header.size(),
                         .snapshot_bytes = static_cast<uint64_t>(snapshot.size_bytes),
                         .header_hash = HashOf(header)};
  std::memcpy(beginning.magic, format.magic.data(), sizeof(beginning.magic));
  absl::Status status;
  {
    const File out(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (out.fd() < 0) {
      const absl::Status failed = DiskError("create", path);
      // Without its folder, nothing is missing that a caller has named.
      return absl::IsNotFound(failed) ? absl::UnavailableError(failed.message()) : failed;
    }
    if (!WriteAll(out, beginning, header, snapshot)) status = DiskError("write", path);
  }
  if (!status.ok()) unlink(path.c_str());
  return status;
}

SnapshotFile::SnapshotFile(std::string path, absl::string_view what)
    : path_(std::move(path)), what_(what), file_(std::make_unique<File>(path_, O_RDONLY | O_NONBLOCK)) {}

absl::Status SnapshotFile::Torn(absl::string_view how) const {
  return absl::DataLossError(absl::StrCat("the ", what_, " file ", path_, " is torn or damaged: ", how));
}

absl::StatusOr<SnapshotFile> SnapshotFile::Open(const std::string& path, const SnapshotFormat& format) {
  SnapshotFile file(path, format.what);
  struct stat stat;
  if (file.file_->fd() < 0) return DiskError("open", path);
  if (fstat(file.file_->fd(), &stat) != 0) return DiskError("read", path);
  if (!S_ISREG(stat.st_mode)) return file.Torn("it is not a regular file");
  Beginning beginning;
  if (!file.file_->Read(&beginning, sizeof(beginning)) ||
      std::memcmp(beginning.magic, format.magic.data(), sizeof(beginning.magic)) != 0) {
    return file.Torn("it does not start like one");
  }
  if (beginning.version < format.oldest_version || beginning.version > format.version) {
    const bool newer = beginning.version > format.version;
    return absl::FailedPreconditionError(
        absl::StrCat("the ", format.what, " file ", path, " has format version ", beginning.version,
                     "; this server reads versions ", format.oldest_version, " to ", format.version,
                     newer ? "; a newer release wrote it" : "; an older release wrote it"));
  }
  const auto size = static_cast<uint64_t>(stat.st_size);
  constexpr uint64_t kLeast = sizeof(Beginning) + sizeof(ContentHash::Digest);
  if (beginning.header_bytes > kMaxHeaderBytes || size < kLeast || beginning.header_bytes > size - kLeast ||
      beginning.snapshot_bytes != size - kLeast - beginning.header_bytes) {
    return file.Torn(absl::StrCat("its size of ", size, " bytes is not the size in its header"));
  }
  file.header_.resize(beginning.header_bytes);
  if (!file.file_->Read(file.header_.data(), file.header_.size()) || HashOf(file.header_) != beginning.header_hash) {
    return file.Torn("its header's checksum is wrong");
  }
  file.hash_.Add(&beginning, sizeof(beginning));
  file.hash_.Add(file.header_.data(), file.header_.size());
  file.snapshot_bytes_ = static_cast<int64_t>(beginning.snapshot_bytes);
  file.size_bytes_ = static_cast<int64_t>(size);
  return file;
}

absl::Status SnapshotFile::ReadSnapshot(CacheSnapshot* snapshot) {
  if (snapshot->size_bytes != snapshot_bytes_) {
    return Torn(absl::StrCat("it holds ", snapshot_bytes_, " of the ", snapshot->size_bytes, " bytes of its cache"));
  }
  const auto size = static_cast<size_t>(snapshot_bytes_);
  snapshot->bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  ContentHash::Digest digest;
  const bool read = file_->Read(snapshot->bytes.get(), size) && file_->Read(digest.data(), digest.size());
  hash_.Add(snapshot->bytes.get(), size);
  if (!read || digest != hash_.digest()) return Torn("its checksum is wrong");
  return absl::OkStatus();
}

}  // namespace berth
