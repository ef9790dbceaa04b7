// The packed matrices of a model, kept in a file: a later start maps them, and neither packs nor reads the
// checkpoint's.
//
// A file knows its matrices by their order alone. A load packs the same ones in the same order if it is the same
// program with the same settings on the same checkpoint and kind of processor; all that has to be in the file's
// identity, which the caller hashes. Written beside the place and renamed when whole; hashed again when it is mapped,
// so that a torn or damaged file is not used but written anew. A file must not shrink while it is mapped (SIGBUS):
// remove it, or rename another over it.
//
// Format, of the processor's own byte order: the header, then for each matrix an entry, then their hash; then from the
// next page on the matrices' panels, each from a cache line on, and scales.
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
#include <vector>

#include "absl/status/status.h"
#include "models/kernels/cpu/panels.h"

namespace berth {

// One matrix as PackedMatrix keeps it.
struct PackedPanels {
  at::ScalarType type = at::kFloat;  // of inputs and outputs
  ops::WeightKind kind = ops::kWeightF32;
  int64_t inputs = 0, outputs = 0;
  at::Tensor panels;  // bytes
  at::Tensor scales;  // [outputs], float32, of int8; else undefined

  int64_t size_bytes() const;
};

class PackedWeights {
 public:
  // What becomes of the file that Keep writes; called once, by a thread of its own.
  using OnKept = std::function<void(const absl::Status&)>;

  // Without a file: only counts.
  PackedWeights() = default;
  // Maps the file at `path` if it is there, whole and of `identity`, which has 32 characters. This thread's pool
  // hashes.
  PackedWeights(std::string path, std::string identity);
  // Gives up a file that is not written yet.
  ~PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Whether matrices come from the file.
  bool mapped() const { return mapping_ != nullptr; }
  const std::string& path() const { return path_; }
  // Of the matrices so far.
  int64_t size_bytes() const { return size_bytes_; }

  // The next matrix of the file. Throws c10::Error where that is of another shape or type. REQUIRES: mapped().
  PackedPanels Take(int64_t outputs, int64_t inputs, at::ScalarType type);
  // The next matrix was packed, or is kept as it is (`size_bytes`).
  void Add(const PackedPanels& matrix);
  void AddPlain(int64_t size_bytes) { size_bytes_ += size_bytes; }

  // All matrices are there: begins to write the file, if there shall be one and it was not mapped. Its folder is made,
  // not that one's parent. RESOURCE_EXHAUSTED (by on_kept): the disk would be more than 95 percent full.
  void Keep(OnKept on_kept);

  // While it lives, what this thread packs goes to `weights` or comes from there.
  class Use {
   public:
    explicit Use(PackedWeights* weights);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    PackedWeights* const before_;
  };
  static PackedWeights* Current();

 private:
  struct Mapping;
  absl::Status Write() const;
  absl::Status WriteTo(int file) const;

  std::string path_, identity_;
  std::shared_ptr<const Mapping> mapping_;
  std::vector<PackedPanels> matrices_;  // until they are written
  size_t num_taken_ = 0;
  int64_t size_bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::thread writer_;
};

}  // namespace berth

#endif  // BERTH_MODELS_OPS_MATMUL_PACKED_WEIGHTS_H_
