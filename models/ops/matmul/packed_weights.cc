#include "models/ops/matmul/packed_weights.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "models/ops/packed_mapping.h"
#include "models/step/cache_line.h"

namespace berth {
namespace {

using ops::kCacheLine;
using ops::RoundUp;

// Written at once, at multiples of it: so the system keeps them in huge pages.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
// Bytes of the file, which live as long as the tensor.
at::Tensor TensorOf(std::shared_ptr<const PackedMapping> mapping, int64_t offset, at::IntArrayRef shape,
                    at::ScalarType type) {
  char* const bytes = mapping->bytes() + offset;
  return at::from_blob(
      bytes, shape, [mapping = std::move(mapping)](void*) {}, at::TensorOptions(type));
}

const char* BytesOf(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const char*>(tensor.const_data_ptr()) : nullptr;
}
int64_t SizeOf(const at::Tensor& tensor) { return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0; }

// Whether this process alone writes to what is called `path` now: another may have, and have renamed it since.
bool IsOurs(int file, const std::string& path) {
  struct stat opened = {}, named = {};
  return flock(file, LOCK_EX | LOCK_NB) == 0 && fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

absl::Status WriteAt(int file, const char* bytes, int64_t size, int64_t offset) {
  while (size > 0) {
    const ssize_t written = pwrite(file, bytes, static_cast<size_t>(size), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::ErrnoToStatus(errno, "pwrite");
    bytes += written;
    offset += written;
    size -= written;
  }
  return absl::OkStatus();
}

// Writes a file from its beginning, piece by piece, until `stop`. The first error ends it, and Finish says it.
class PieceWriter {
 public:
  PieceWriter(int file, const std::atomic<bool>* stop) : file_(file), stop_(stop), piece_(kPieceBytes) {}

  int64_t offset() const { return start_ + filled_; }
  void SkipTo(int64_t offset) { Append(nullptr, offset - this->offset()); }
  // Null: zeros.
  void Append(const char* bytes, int64_t size) {
    while (size > 0 && status_.ok()) {
      const int64_t count = std::min(size, kPieceBytes - filled_);
      if (bytes == nullptr) {
        std::fill_n(piece_.begin() + filled_, count, '\0');
      } else {
        std::memcpy(piece_.data() + filled_, bytes, static_cast<size_t>(count));
        bytes += count;
      }
      filled_ += count;
      size -= count;
      if (filled_ == kPieceBytes) Flush();
    }
  }
  absl::Status Finish() {
    Flush();
    return status_;
  }

 private:
  void Flush() {
    if (status_.ok() && stop_->load(std::memory_order_relaxed))
      status_ = absl::CancelledError("stopped before it was written");
    if (status_.ok()) status_ = WriteAt(file_, piece_.data(), filled_, start_);
    start_ += std::exchange(filled_, 0);
  }

  const int file_;
  const std::atomic<bool>* const stop_;
  std::vector<char> piece_;
  int64_t start_ = 0;  // of the piece
  int64_t filled_ = 0;
  absl::Status status_;
};

}  // namespace

int64_t PackedPanels::size_bytes() const { return SizeOf(panels) + SizeOf(scales); }

PackedWeights::PackedWeights(std::string path, std::string identity, Execution* execution)
    : execution_(execution),
      path_(std::move(path)),
      identity_(std::move(identity)),
      mapping_(PackedMapping::Open(path_, identity_, execution->threads)) {
  TORCH_CHECK(identity_.size() == sizeof(PackedHeader::identity), "an identity of ", identity_.size(), " characters");
}

PackedWeights::~PackedWeights() {
  stop_ = true;
  if (writer_.joinable()) writer_.join();
}

void PackedWeights::Claim(const std::string& name) {
  TORCH_CHECK(names_.insert(name).second, "the matrix ", name, " is packed twice");
}

PackedPanels PackedWeights::Take(const std::string& name, int64_t outputs, int64_t inputs, at::ScalarType type) {
  const PackedEntry* const found = mapping_->Find(name);
  TORCH_CHECK(found != nullptr, path_, " has no matrix ", name, ": remove the file");
  const PackedEntry& e = *found;
  TORCH_CHECK(e.outputs == outputs && e.inputs == inputs && e.type == static_cast<int32_t>(type), path_, ": matrix ",
              name, " is ", e.outputs, " x ", e.inputs, ", the model's ", outputs, " x ", inputs, " of ", type,
              ": remove the file");
  Claim(name);
  PackedPanels matrix = {.type = type,
                         .dtype = static_cast<DType>(e.dtype),
                         .inputs = inputs,
                         .outputs = outputs,
                         .panels = TensorOf(mapping_, e.offset, {e.panel_bytes}, at::kByte)};
  if (e.scale_bytes > 0) {
    matrix.scales = TensorOf(mapping_, e.offset + e.panel_bytes, {outputs}, at::kFloat);
  }
  size_bytes_ += matrix.size_bytes();
  return matrix;
}

void PackedWeights::Add(const std::string& name, const PackedPanels& matrix) {
  Claim(name);
  size_bytes_ += matrix.size_bytes();
  if (!path_.empty()) matrices_.emplace_back(name, matrix);
}

void PackedWeights::AddPlain(const std::string& name, int64_t size_bytes) {
  Claim(name);
  size_bytes_ += size_bytes;
}

void PackedWeights::Keep(OnKept on_kept) {
  if (path_.empty() || mapped()) return;
  writer_ = std::thread([this, on_kept = std::move(on_kept)] {
    const absl::Status status = Write();
    matrices_ = {};
    on_kept(status);
  });
}

absl::Status PackedWeights::Write() const {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(folder.string(), ": ", error.message()));
  if (space.available / 2 < static_cast<uintmax_t>(size_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": its ", size_bytes_, " bytes are more than half of the ",
                                                     space.available, " that the disk has free"));
  }
  const std::string part = absl::StrCat(path_, ".part");
  const int file = open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, part);
  const absl::Cleanup close_file = [file] { close(file); };
  if (!IsOurs(file, part)) return absl::AbortedError(absl::StrCat(part, ": another server is writing it"));
  absl::Status status = WriteTo(file);
  // Not synced first, which may take long: what a crash tears, the next start's hashing finds.
  if (status.ok() && rename(part.c_str(), path_.c_str()) != 0) status = absl::ErrnoToStatus(errno, part);
  if (!status.ok()) unlink(part.c_str());
  return status;
}

absl::Status PackedWeights::WriteTo(int file) const {
  if (ftruncate(file, 0) != 0) return absl::ErrnoToStatus(errno, path_);
  PieceWriter writer(file, &stop_);
  std::vector<PackedEntry> entries;
  std::string names;
  for (const auto& [name, matrix] : matrices_) names += name;
  const auto name_bytes = static_cast<int64_t>(names.size());
  writer.SkipTo(PackedHeadBytes(static_cast<int64_t>(matrices_.size()), name_bytes));
  for (const auto& [name, matrix] : matrices_) {
    writer.SkipTo(RoundUp(writer.offset(), kCacheLine));
    PackedEntry& e = entries.emplace_back();
    e = {.type = static_cast<int32_t>(matrix.type),
         .dtype = static_cast<int32_t>(matrix.dtype),
         .inputs = matrix.inputs,
         .outputs = matrix.outputs,
         .offset = writer.offset(),
         .panel_bytes = SizeOf(matrix.panels),
         .scale_bytes = SizeOf(matrix.scales),
         .name_bytes = static_cast<int64_t>(name.size()),
         .hash = HashOfPacked(BytesOf(matrix.panels), SizeOf(matrix.panels), BytesOf(matrix.scales),
                              SizeOf(matrix.scales))};
    writer.Append(BytesOf(matrix.panels), e.panel_bytes);
    writer.Append(BytesOf(matrix.scales), e.scale_bytes);
  }
  if (absl::Status s = writer.Finish(); !s.ok()) return absl::Status(s.code(), absl::StrCat(path_, ": ", s.message()));
  PackedHeader header = {
      .magic = {}, .identity = {}, .count = static_cast<int64_t>(entries.size()), .name_bytes = name_bytes};
  std::memcpy(header.magic, kPackedMagic, sizeof(header.magic));
  std::memcpy(header.identity, identity_.data(), sizeof(header.identity));
  std::string head(reinterpret_cast<const char*>(&header), sizeof(header));
  head.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(PackedEntry));
  head += names;
  AppendHeadHash(&head);
  return WriteAt(file, head.data(), static_cast<int64_t>(head.size()), 0);
}

}  // namespace berth
