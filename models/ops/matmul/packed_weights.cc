#include "models/ops/matmul/packed_weights.h"

#define XXH_INLINE_ALL
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "models/step/cache_line.h"
#include "models/step/thread_pool.h"

namespace berth {
namespace {

using ops::kCacheLine;
using ops::RoundUp;

constexpr char kMagic[8] = {'b', 'e', 'r', 't', 'h', 'p', 'w', '2'};
constexpr int64_t kPage = 4096;
// Written at once, at multiples of it: so the system keeps them in huge pages.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr int64_t kMaxMatrices = 1 << 24;
constexpr int64_t kMaxNameBytes = int64_t{1} << 32;

struct Header {
  char magic[sizeof(kMagic)];
  char identity[32];
  int64_t count;
  int64_t name_bytes;  // of all names
};

struct Entry {
  int32_t type, dtype;
  int64_t inputs, outputs;
  int64_t offset;  // of the panels, which the scales follow
  int64_t panel_bytes, scale_bytes;
  int64_t name_bytes;
  uint64_t hash;

  int64_t size_bytes() const { return panel_bytes + scale_bytes; }
};

// What is hashed of the head.
int64_t HashedBytes(int64_t count, int64_t name_bytes) {
  return static_cast<int64_t>(sizeof(Header) + count * sizeof(Entry)) + name_bytes;
}

int64_t HeadBytes(int64_t count, int64_t name_bytes) {
  return RoundUp(HashedBytes(count, name_bytes) + static_cast<int64_t>(sizeof(uint64_t)), kPage);
}

// Whether the panels and scales have the size that the shape needs, and lie within the file.
bool Fits(const Entry& e, int64_t file_bytes) {
  constexpr int64_t kMaxSize = int64_t{1} << 31;
  const auto dtype = static_cast<DType>(e.dtype);
  if (e.dtype < 0 || dtype > DType::kInt4) return false;
  if (e.inputs <= 0 || e.outputs <= 0 || e.inputs > kMaxSize || e.outputs > kMaxSize) return false;
  if (e.panel_bytes != ops::PanelCount(e.outputs) * ops::PanelBytes(dtype, e.inputs)) return false;
  if (e.scale_bytes != (IsQuantised(dtype) ? e.outputs * 4 : 0)) return false;
  return e.offset > 0 && e.offset % kCacheLine == 0 && e.offset <= file_bytes - e.size_bytes();
}

uint64_t HashOf(const char* panels, int64_t panel_bytes, const char* scales, int64_t scale_bytes) {
  return XXH3_64bits_withSeed(scales, static_cast<size_t>(scale_bytes),
                              XXH3_64bits(panels, static_cast<size_t>(panel_bytes)));
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

// A file that was checked.
struct PackedWeights::Mapping {
  ~Mapping() {
    if (bytes != nullptr) munmap(bytes, static_cast<size_t>(size));
  }
  // Null: it is not there, or not of `identity`, or damaged.
  static std::shared_ptr<const Mapping> Open(const std::string& path, const std::string& identity, ThreadPool* threads);
  bool Map(const std::string& path);
  bool ReadEntries(const std::string& identity);
  // REQUIRES: the head is whole.
  bool ReadNames(const char* names, int64_t left);
  bool Intact(ThreadPool* threads) const;
  at::Tensor Tensor(int64_t offset, at::IntArrayRef shape, at::ScalarType type,
                    std::shared_ptr<const Mapping> self) const {
    return at::from_blob(
        bytes + offset, shape, [self = std::move(self)](void*) {}, at::TensorOptions(type));
  }

  char* bytes = nullptr;
  int64_t size = 0;
  std::vector<Entry> entries;
  absl::flat_hash_map<std::string, size_t> index;  // of the entry, by name
};

bool PackedWeights::Mapping::Map(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat stat = {};
  if (fstat(file, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_size < HeadBytes(0, 0)) return false;
  void* const mapped = mmap(nullptr, static_cast<size_t>(stat.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) return false;
  bytes = static_cast<char*>(mapped);
  size = stat.st_size;
  madvise(mapped, static_cast<size_t>(size), MADV_HUGEPAGE);  // what has to be read from the disk comes in huge pages
  return true;
}

bool PackedWeights::Mapping::ReadEntries(const std::string& identity) {
  Header header;
  std::memcpy(&header, bytes, sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || identity.size() != sizeof(header.identity) ||
      std::memcmp(header.identity, identity.data(), identity.size()) != 0 || header.count < 0 ||
      header.count > kMaxMatrices || header.name_bytes < 0 || header.name_bytes > kMaxNameBytes ||
      HeadBytes(header.count, header.name_bytes) > size) {
    return false;
  }
  const auto head = static_cast<size_t>(HashedBytes(header.count, header.name_bytes));
  uint64_t hash = 0;
  std::memcpy(&hash, bytes + head, sizeof(hash));
  if (hash != XXH3_64bits(bytes, head)) return false;
  entries.resize(static_cast<size_t>(header.count));
  std::memcpy(entries.data(), bytes + sizeof(Header), entries.size() * sizeof(Entry));
  return ReadNames(bytes + HashedBytes(header.count, 0), header.name_bytes) &&
         std::all_of(entries.begin(), entries.end(), [&](const Entry& e) { return Fits(e, size); });
}

bool PackedWeights::Mapping::ReadNames(const char* names, int64_t left) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t count = entries[i].name_bytes;
    if (count < 0 || count > left) return false;
    if (!index.emplace(std::string(names, static_cast<size_t>(count)), i).second) return false;
    names += count;
    left -= count;
  }
  return left == 0;
}

bool PackedWeights::Mapping::Intact(ThreadPool* threads) const {
  std::atomic<bool> intact = true;
  ShareItems(threads, static_cast<int64_t>(entries.size()), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) {
      const Entry& e = entries[static_cast<size_t>(i)];
      const char* const panels = bytes + e.offset;
      if (HashOf(panels, e.panel_bytes, panels + e.panel_bytes, e.scale_bytes) != e.hash) intact = false;
    }
  });
  return intact;
}

std::shared_ptr<const PackedWeights::Mapping> PackedWeights::Mapping::Open(const std::string& path,
                                                                           const std::string& identity,
                                                                           ThreadPool* threads) {
  auto mapping = std::make_shared<Mapping>();
  if (!mapping->Map(path) || !mapping->ReadEntries(identity) || !mapping->Intact(threads)) return nullptr;
  return mapping;
}

int64_t PackedPanels::size_bytes() const { return SizeOf(panels) + SizeOf(scales); }

PackedWeights::PackedWeights(std::string path, std::string identity, Execution* execution)
    : execution_(execution),
      path_(std::move(path)),
      identity_(std::move(identity)),
      mapping_(Mapping::Open(path_, identity_, execution->threads)) {
  TORCH_CHECK(identity_.size() == sizeof(Header::identity), "an identity of ", identity_.size(), " characters");
}

PackedWeights::~PackedWeights() {
  stop_ = true;
  if (writer_.joinable()) writer_.join();
}

void PackedWeights::Claim(const std::string& name) {
  TORCH_CHECK(names_.insert(name).second, "the matrix ", name, " is packed twice");
}

PackedPanels PackedWeights::Take(const std::string& name, int64_t outputs, int64_t inputs, at::ScalarType type) {
  const auto found = mapping_->index.find(name);
  TORCH_CHECK(found != mapping_->index.end(), path_, " has no matrix ", name, ": remove the file");
  const Entry& e = mapping_->entries[found->second];
  TORCH_CHECK(e.outputs == outputs && e.inputs == inputs && e.type == static_cast<int32_t>(type), path_, ": matrix ",
              name, " is ", e.outputs, " x ", e.inputs, ", the model's ", outputs, " x ", inputs, " of ", type,
              ": remove the file");
  Claim(name);
  PackedPanels matrix = {.type = type,
                         .dtype = static_cast<DType>(e.dtype),
                         .inputs = inputs,
                         .outputs = outputs,
                         .panels = mapping_->Tensor(e.offset, {e.panel_bytes}, at::kByte, mapping_)};
  if (e.scale_bytes > 0) {
    matrix.scales = mapping_->Tensor(e.offset + e.panel_bytes, {outputs}, at::kFloat, mapping_);
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
  if (space.available < static_cast<uintmax_t>(size_bytes_) + space.capacity / 20) {
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": its ", size_bytes_,
                                                     " bytes would leave less than 5 percent of the disk's ",
                                                     space.capacity, " bytes free"));
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
  std::vector<Entry> entries;
  std::string names;
  for (const auto& [name, matrix] : matrices_) names += name;
  const auto name_bytes = static_cast<int64_t>(names.size());
  writer.SkipTo(HeadBytes(static_cast<int64_t>(matrices_.size()), name_bytes));
  for (const auto& [name, matrix] : matrices_) {
    writer.SkipTo(RoundUp(writer.offset(), kCacheLine));
    Entry& e = entries.emplace_back();
    e = {.type = static_cast<int32_t>(matrix.type),
         .dtype = static_cast<int32_t>(matrix.dtype),
         .inputs = matrix.inputs,
         .outputs = matrix.outputs,
         .offset = writer.offset(),
         .panel_bytes = SizeOf(matrix.panels),
         .scale_bytes = SizeOf(matrix.scales),
         .name_bytes = static_cast<int64_t>(name.size()),
         .hash = HashOf(BytesOf(matrix.panels), SizeOf(matrix.panels), BytesOf(matrix.scales), SizeOf(matrix.scales))};
    writer.Append(BytesOf(matrix.panels), e.panel_bytes);
    writer.Append(BytesOf(matrix.scales), e.scale_bytes);
  }
  if (absl::Status s = writer.Finish(); !s.ok()) return absl::Status(s.code(), absl::StrCat(path_, ": ", s.message()));
  Header header = {
      .magic = {}, .identity = {}, .count = static_cast<int64_t>(entries.size()), .name_bytes = name_bytes};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::memcpy(header.identity, identity_.data(), sizeof(header.identity));
  std::string head(reinterpret_cast<const char*>(&header), sizeof(header));
  head.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry));
  head += names;
  const uint64_t hash = XXH3_64bits(head.data(), head.size());
  head.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return WriteAt(file, head.data(), static_cast<int64_t>(head.size()), 0);
}

}  // namespace berth
