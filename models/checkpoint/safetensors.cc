#include "models/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bounded_json.h"

// The file is mapped, and nothing is copied:
//
//   8 bytes: length n of the header | header: JSON of n bytes | bytes of the tensors
//
// The header gives each tensor's type, shape and [begin, end) among the bytes. What it says is checked before anything
// is read by it: each range has the size that type and shape need, and lies in the file. Sorted by their begin, the
// ranges follow one another without gap or overlap, up to the end of the file (CheckLayout).
namespace berth {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxRank = 16;
constexpr int64_t kMaxTensorBits = int64_t{1} << 56;

struct DTypeInfo {
  absl::string_view name;
  int bits;
};

// By TensorDType.
constexpr DTypeInfo kDTypes[] = {{"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
                                 {"F8_E8M0", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},
                                 {"U32", 32},    {"I32", 32}, {"F32", 32}, {"U64", 64},    {"I64", 64},
                                 {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
static_assert(std::size(kDTypes) == static_cast<size_t>(TensorDType::kF6E3M2) + 1);

std::optional<TensorDType> ParseDType(absl::string_view name) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].name == name) return static_cast<TensorDType>(i);
  }
  return std::nullopt;
}

template <typename... T>
absl::Status Invalid(absl::string_view file, const T&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", parts...));
}

// Reads one non-negative integer of the header.
bool ToSize(const json& value, int64_t* size) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  *size = static_cast<int64_t>(value.get<uint64_t>());
  return true;
}

// Shape of tensor `name`, and its size in bits.
absl::Status ParseShape(absl::string_view file, absl::string_view name, const json& value, TensorDType dtype,
                        std::vector<int64_t>* shape, int64_t* bits) {
  if (!value.is_array()) return Invalid(file, name, ": shape ", ShortDump(value), " is not a list");
  if (value.size() > kMaxRank)
    return Invalid(file, name, ": ", value.size(), " dimensions are over the limit of ", kMaxRank);
  *bits = TensorDTypeBits(dtype);
  for (const json& element : value) {
    int64_t size = 0;
    if (!ToSize(element, &size)) {
      return Invalid(file, name, ": shape ", ShortDump(value), " has a size that is not a non-negative integer");
    }
    shape->push_back(size);
    // Saturates: what is this large never equals a byte range.
    if (__builtin_mul_overflow(*bits, size, bits)) *bits = kMaxTensorBits;
    *bits = std::min(*bits, kMaxTensorBits);
  }
  if (std::find(shape->begin(), shape->end(), 0) != shape->end()) *bits = 0;
  return absl::OkStatus();
}

// One header entry. `data` is where the tensors' bytes begin, `data_bytes` how many the file has.
absl::Status ParseTensor(absl::string_view file, const std::string& raw_name, const json& entry, const std::byte* data,
                         int64_t data_bytes, TensorView* tensor) {
  const std::string name = ShortQuote(raw_name);
  if (!entry.is_object()) return Invalid(file, name, ": must be an object, is ", ShortDump(entry));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) return Invalid(file, name, ": ", key, " is absent");
  }
  const json& dtype = entry["dtype"];
  const std::optional<TensorDType> parsed =
      dtype.is_string() ? ParseDType(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!parsed) return Invalid(file, name, ": dtype ", ShortDump(dtype), " is unknown");
  tensor->name = raw_name;
  tensor->dtype = *parsed;
  int64_t bits = 0;
  if (absl::Status s = ParseShape(file, name, entry["shape"], *parsed, &tensor->shape, &bits); !s.ok()) return s;

  const json& offsets = entry["data_offsets"];
  int64_t begin = 0;
  int64_t end = 0;
  if (!offsets.is_array() || offsets.size() != 2 || !ToSize(offsets[0], &begin) || !ToSize(offsets[1], &end) ||
      begin > end) {
    return Invalid(file, name, ": data_offsets ", ShortDump(offsets), " is not a [begin, end] with begin <= end");
  }
  if (end > data_bytes) {
    return Invalid(file, name, ": data_offsets ", ShortDump(offsets), " end beyond the file's ", data_bytes,
                   " bytes of data; is it truncated?");
  }
  if (bits % 8 != 0 || bits / 8 != end - begin) {
    return Invalid(file, name, ": data_offsets ", ShortDump(offsets), " hold ", end - begin, " bytes, ",
                   ShortDump(dtype), " of shape ", ShortDump(entry["shape"]), " needs ", bits / 8);
  }
  tensor->data = data + begin;
  tensor->bytes = end - begin;
  return absl::OkStatus();
}

bool IsFile(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// A plain name of a file beside the index: never a path that leads elsewhere.
bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
}

}  // namespace

absl::string_view TensorDTypeName(TensorDType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
int64_t TensorDTypeBits(TensorDType dtype) { return kDTypes[static_cast<size_t>(dtype)].bits; }

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  if (absl::Status status = file->Map(path); !status.ok()) return status;
  const std::string file_name = ShortQuote(std::filesystem::path(path).filename().string());
  if (absl::Status status = file->ReadHeader(file_name); !status.ok()) return status;
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

absl::Status SafetensorsFile::Map(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  struct stat info = {};
  absl::Status status;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = absl::FailedPreconditionError(absl::StrCat(path, ": is not a regular file"));
  } else if (info.st_size < kLengthBytes) {
    status =
        Invalid(path, info.st_size, " bytes are fewer than the ", kLengthBytes, " of a safetensors file; truncated?");
  } else {
    void* mapped = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) {
      status = absl::FailedPreconditionError(absl::StrCat(path, ": cannot be mapped: ", std::strerror(errno)));
    } else {
      madvise(mapped, static_cast<size_t>(info.st_size), MADV_WILLNEED);  // all of it will be read, soon
      data_ = static_cast<const std::byte*>(mapped);
      size_ = info.st_size;
    }
  }
  close(fd);
  return status;
}

absl::Status SafetensorsFile::ReadHeader(const std::string& file_name) {
  uint64_t header_bytes = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint64_t>(data_[i]);
  const uint64_t limit = static_cast<uint64_t>(std::min(kMaxHeaderBytes, size_ - kLengthBytes));
  if (header_bytes > limit) {
    return Invalid(file_name, "header of ", header_bytes, " bytes is over the limit of ", limit,
                   " (the file's size, or ", kMaxHeaderBytes, "); is it truncated, or not safetensors?");
  }
  const absl::string_view text(reinterpret_cast<const char*>(data_ + kLengthBytes), header_bytes);
  const JsonLimits limits = {.max_bytes = kMaxHeaderBytes, .max_depth = 8, .refuse_duplicate_keys = true};
  json header;
  if (absl::Status status = ParseJsonObject(text, file_name, limits, &header); !status.ok()) return status;

  const std::byte* data = data_ + kLengthBytes + header_bytes;
  const int64_t data_bytes = size_ - kLengthBytes - static_cast<int64_t>(header_bytes);
  tensors_.reserve(header.size());
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (absl::Status s = ParseTensor(file_name, name, entry, data, data_bytes, &tensors_.emplace_back()); !s.ok()) {
      return s;
    }
  }
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) {
    return std::pair(a.data, a.bytes) < std::pair(b.data, b.bytes);
  });
  return CheckLayout(file_name, data_bytes);
}

absl::Status SafetensorsFile::CheckLayout(const std::string& file_name, int64_t data_bytes) const {
  const std::byte* const data = data_ + (size_ - data_bytes);
  int64_t filled = 0;
  for (const TensorView& tensor : tensors_) {
    const int64_t begin = tensor.data - data;
    if (begin != filled) {
      return Invalid(file_name, ShortQuote(tensor.name), ": begins at byte ", begin, ", ",
                     begin < filled ? "overlapping" : "leaving a gap after", " the tensor before, which ends at ",
                     filled);
    }
    filled += tensor.bytes;
  }
  if (filled != data_bytes) {
    return Invalid(file_name, "the tensors fill ", filled, " bytes, the file has ", data_bytes, " bytes of data");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir) {
  const std::filesystem::path folder(dir);
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  absl::Status status;
  if (const auto single = folder / "model.safetensors"; IsFile(single)) {
    status = checkpoint->OpenSingle(single.string());
  } else if (const auto index = folder / "model.safetensors.index.json"; IsFile(index)) {
    status = checkpoint->OpenShards(dir, index.string());
  } else if (IsFile(folder / "pytorch_model.bin") || IsFile(folder / "pytorch_model.bin.index.json")) {
    status = absl::FailedPreconditionError(absl::StrCat(
        dir, ": holds pytorch_model.bin, a pickle, which could run code and is never read; convert it with ",
        "`python -c \"from transformers import AutoModelForCausalLM as M; "
        "M.from_pretrained('DIR', dtype='auto').save_pretrained('OUT')\"`"));
  } else {
    status = absl::FailedPreconditionError(
        absl::StrCat(dir, ": holds neither model.safetensors nor model.safetensors.index.json"));
  }
  if (!status.ok()) return status;
  checkpoint->Finish();
  return checkpoint;
}

absl::Status Checkpoint::OpenSingle(const std::string& path) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  for (const TensorView& tensor : (*file)->tensors()) tensors_.emplace(tensor.name, &tensor);
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenShards(const std::string& dir, const std::string& index_path) {
  const std::string index_name = std::filesystem::path(index_path).filename().string();
  absl::StatusOr<std::string> text = ReadSmallFile(index_path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  json index;
  const JsonLimits limits = {.max_bytes = kMaxIndexBytes, .refuse_duplicate_keys = true};
  if (absl::Status status = ParseJsonObject(*text, index_name, limits, &index); !status.ok()) return status;
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Invalid(index_name, "weight_map is not an object");
  }

  // Shard by shard, so that each is opened once.
  std::map<std::string, std::vector<std::string>> names_by_shard;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return Invalid(index_name, "weight_map: ", ShortQuote(name), ": ", ShortDump(shard),
                     " is not the name of a file beside the index");
    }
    names_by_shard[shard.get<std::string>()].push_back(name);
  }
  for (const auto& [shard, names] : names_by_shard) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open((std::filesystem::path(dir) / shard).string());
    if (!file.ok()) return file.status();
    absl::flat_hash_map<absl::string_view, const TensorView*> held;
    for (const TensorView& tensor : (*file)->tensors()) held.emplace(tensor.name, &tensor);
    for (const std::string& name : names) {
      const auto it = held.find(name);
      if (it == held.end()) {
        return Invalid(index_name, "weight_map: ", ShortQuote(name), ": not in ", ShortQuote(shard));
      }
      tensors_.emplace(name, it->second);
    }
    files_.push_back(*std::move(file));
  }
  return absl::OkStatus();
}

void Checkpoint::Finish() {
  names_.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) {
    names_.push_back(name);
    size_bytes_ += tensor->bytes;
  }
  std::sort(names_.begin(), names_.end());
}

const TensorView* Checkpoint::Find(absl::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

}  // namespace berth
