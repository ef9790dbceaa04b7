// Reads a checkpoint of safetensors files by mmap, without copying and without running anything from it: pickles
// (pytorch_model.bin) are refused. Immutable once opened; thread-safe. Torch-free.
//
// Format: https://huggingface.co/docs/safetensors#format. A file has three parts:
//   1. 8 bytes: the length N of the header, little-endian;
//   2. N bytes: JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}};
//   3. the tensors' bytes, which must fill the rest without gap or overlap.
//
// A file must not shrink while it is open (SIGBUS): replace checkpoints by renaming, not in place.
#ifndef BERTH_MODELS_CHECKPOINT_SAFETENSORS_H_
#define BERTH_MODELS_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

enum class TensorDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
  kC64,
  kF4,
  kF6E2M3,
  kF6E3M2
};
absl::string_view TensorDTypeName(TensorDType dtype);  // as in the file: "BF16"
int64_t TensorDTypeBits(TensorDType dtype);

// One tensor within a mapped file: row-major, dense, little-endian; `data` may have any alignment.
struct TensorView {
  std::string name;
  TensorDType dtype = TensorDType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};

// One mapped file and its tensors, in the order of their bytes.
class SafetensorsFile {
 public:
  // Every message names the file and, where there is one, the tensor, the value and the limit.
  // FAILED_PRECONDITION: cannot be opened; INVALID_ARGUMENT: no well-formed safetensors file.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::vector<TensorView>& tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;
  absl::Status Map(const std::string& path);
  absl::Status ReadHeader(const std::string& file_name);
  absl::Status CheckLayout(const std::string& file_name, int64_t data_bytes) const;

  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::vector<TensorView> tensors_;
};

// The tensors of a model's folder: model.safetensors, or the shards of model.safetensors.index.json, whose weight_map
// decides what belongs to the checkpoint.
class Checkpoint {
 public:
  // As SafetensorsFile::Open; FAILED_PRECONDITION also where the folder holds no safetensors, saying how to convert a
  // pytorch_model.bin.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir);

  // nullptr: no such tensor. Views live as long as the checkpoint.
  const TensorView* Find(absl::string_view name) const;
  // Ascending.
  const std::vector<std::string>& names() const { return names_; }
  // The bytes of all tensors.
  int64_t size_bytes() const { return size_bytes_; }

 private:
  Checkpoint() = default;
  absl::Status OpenSingle(const std::string& path);
  absl::Status OpenShards(const std::string& dir, const std::string& index_path);
  void Finish();

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, const TensorView*> tensors_;
  std::vector<std::string> names_;
  int64_t size_bytes_ = 0;
};

}  // namespace berth

#endif  // BERTH_MODELS_CHECKPOINT_SAFETENSORS_H_
