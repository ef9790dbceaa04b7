// The packed matrices of a model, kept in a file: a later start maps them, and neither packs nor reads the
// checkpoint's.
//
// A matrix has a name: its tensor's in the checkpoint, or those of the tensors that it is made of. What a matrix of a
// name becomes depends on the program, its settings, the checkpoint and the kind of processor. All of that has to be in
// the file's identity, which the caller hashes. A file is written under another name and renamed when it is complete.
// It is hashed again when it is mapped, so a torn or damaged file is not used but replaced. A file must not shrink
// while it is mapped (SIGBUS): remove it, or rename another over it.
//
// The format is that of models/ops/packed_mapping.h.
//
// Thread-compatible; load time only.
#ifndef BERTH_MODELS_OPS_MATMUL_PACKED_WEIGHTS_H_
#define BERTH_MODELS_OPS_MATMUL_PACKED_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "models/kernels/cpu/panels.h"
#include "models/ops/packed_mapping.h"
#include "models/step/execution.h"

namespace berth {

// One matrix as PackedMatrix keeps it.
struct PackedPanels {
  at::ScalarType type = at::kFloat;  // of inputs and outputs
  DType dtype = DType::kFloat32;
  int64_t inputs = 0, outputs = 0;
  at::Tensor panels;  // bytes
  at::Tensor scales;  // [outputs], float32, of int8; else undefined

  int64_t size_bytes() const;
};

class PackedWeights {
 public:
  // Gets the result of Keep's writing; called once, on the thread that writes.
  using OnKept = std::function<void(const absl::Status&)>;

  // What becomes of the matrices of a model: packed or kept, or only measured for a device.
  enum class Purpose { kKeep, kMeasureForCpu, kMeasureForOther };

  // Without a file: only counts. `execution` packs, and must outlive the loading.
  explicit PackedWeights(Execution* execution, Purpose purpose = Purpose::kKeep)
      : execution_(execution), purpose_(purpose) {}
  // Maps the file at `path` if it is there, whole and of `identity`, which has 32 characters. The threads of
  // `execution` hash it.
  PackedWeights(std::string path, std::string identity, Execution* execution);
  // Gives up a file that is not written yet.
  ~PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Whether matrices come from the file.
  bool mapped() const { return mapping_ != nullptr; }
  Purpose purpose() const { return purpose_; }
  const std::string& path() const { return path_; }
  Execution& execution() const { return *execution_; }
  // Bytes of the matrices so far.
  int64_t size_bytes() const { return size_bytes_; }

  // The matrix of this name, once. Throws c10::Error if there is none, or if it is of another shape or type.
  // REQUIRES: mapped().
  PackedPanels Take(const std::string& name, int64_t outputs, int64_t inputs, at::ScalarType type);
  // A matrix was packed, or is kept as it is or measured (`size_bytes`). Throws c10::Error if the name was taken or
  // added before.
  void Add(const std::string& name, const PackedPanels& matrix);
  void AddPlain(const std::string& name, int64_t size_bytes);

  // Call it when all matrices are there. Begins to write the file, if there is a path and it was not mapped. Creates
  // the file's folder, but not the folder's parent. RESOURCE_EXHAUSTED (by on_kept): the disk would be more than 95
  // percent full.
  void Keep(OnKept on_kept);

 private:
  absl::Status Write() const;
  absl::Status WriteTo(int file) const;

  // Notes a name, each once.
  void Claim(const std::string& name);

  Execution* execution_;
  Purpose purpose_ = Purpose::kKeep;
  std::string path_, identity_;
  std::shared_ptr<const PackedMapping> mapping_;
  absl::flat_hash_set<std::string> names_;                      // of the matrices so far
  std::vector<std::pair<std::string, PackedPanels>> matrices_;  // by name, until they are written
  int64_t size_bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::thread writer_;
};

}  // namespace berth

#endif  // BERTH_MODELS_OPS_MATMUL_PACKED_WEIGHTS_H_
