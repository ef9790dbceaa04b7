// Hands a checkpoint's tensors to family code. It checks them against the expected shape, and converts them to the
// run's dtype and device. It records them, so that a tensor which no layer asked for is noticed. Load time only; one
// thread.
//
//   WeightLoader w = WeightLoader(checkpoint, {.dtype = dtype, .device = device})
//                        .UnderFirst({"model.", ""}, "norm.weight");
//   embed = w.Get("embed_tokens.weight", {c.vocab_size, c.hidden_size});
//   WeightLoader mixer = w.Under("layers.0.mixer.");
//   a_log = mixer.GetFloat32("A_log", {c.num_heads});
//   if (!w.status().ok()) return w.status();
//   if (auto unused = w.Unused(); !unused.empty()) ...   // a wrong port, or a tensor to IgnoreUnder
#ifndef BERTH_MODELS_CHECKPOINT_WEIGHT_LOADER_H_
#define BERTH_MODELS_CHECKPOINT_WEIGHT_LOADER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache/dtype.h"
#include "models/checkpoint/safetensors.h"

namespace berth {

class PackedWeights;

// Finds a multimodal checkpoint's text model by the names that it would have alone: "model.norm.weight" and
// "lm_head.weight". The checkpoint may wrap them in one of two ways:
//   - "model.language_model.norm.weight" and "lm_head.weight";
//   - "language_model.model.norm.weight" and "language_model.lm_head.weight".
// A name with base_prefix is found without it too, and one without it with it. Errors name the stored tensors. Tensors
// outside the text model are ignored.
//
// Invariants: every reader made by Under or UnderFirst shares the first error, the record of what was read, and the
// totals with the one it came from.
//
// After an error, Get returns tensors of the requested shape without values (at::kMeta), which take no memory and are
// not packed. So load code may continue to its next status(). Where it joins them with others, ATen may throw.
class WeightLoader {
 public:
  struct Options {
    DType dtype = DType::kFloat32;  // of the tensors that Get returns
    at::Device device = at::kCPU;   // of all tensors
    // How the matrices of linear layers are stored, except the small ones that choose among experts: kInt8, kInt4; any
    // other: exactly.
    DType matrices = DType::kFloat32;
    // Where they are packed. The caller owns it; null: the model packs none.
    PackedWeights* packed = nullptr;
    bool matrices_need_no_values = false;  // GetMatrix gives tensors without values

    // Added to a stored name, or taken from it, to find a tensor, as transformers does. A checkpoint may have been
    // saved from the model without its head, or from one that holds the model. "": neither.
    std::string base_prefix;
  };

  WeightLoader(std::shared_ptr<const Checkpoint> checkpoint, const Options& options);

  // A loader whose names all begin with `prefix` (added to this one's own).
  WeightLoader Under(absl::string_view prefix) const;
  // A loader under the first of `prefixes` that has `probe`: some checkpoints were saved from a part of the model. If
  // none has it, under the first, so that errors name it.
  WeightLoader UnderFirst(std::initializer_list<absl::string_view> prefixes, absl::string_view probe) const;

  // The tensor in the run's dtype. It is a read-only view of the file where dtype, device and alignment allow, so never
  // write to it in place; else a copy, converted by ATen's threads. INVALID_ARGUMENT (sticky): absent, another shape,
  // or no F32, BF16 or F16. RESOURCE_EXHAUSTED (sticky): no memory for it.
  at::Tensor Get(absl::string_view name, at::IntArrayRef shape);
  // Like Get, for a matrix that goes to ops::PackedMatrix and nowhere else. With matrices_need_no_values, a tensor
  // without values (at::kMeta). Not in weight_bytes.
  at::Tensor GetMatrix(absl::string_view name, at::IntArrayRef shape);
  // Undefined when absent.
  at::Tensor GetOptional(absl::string_view name, at::IntArrayRef shape);
  // In float32 whatever the run's dtype: A_log, dt_bias, router biases.
  at::Tensor GetFloat32(absl::string_view name, at::IntArrayRef shape);

  // A tensor of bytes (U8) as it is stored, of what will be packed, as in GetMatrix. INVALID_ARGUMENT (sticky): absent,
  // another shape or type.
  at::Tensor GetBytes(absl::string_view name, at::IntArrayRef shape);

  bool Has(absl::string_view name) const;
  // Whether both are stored, alike to the byte: tied matrices that were saved twice.
  bool Same(absl::string_view a, absl::string_view b) const;
  // What the checkpoint calls the tensor that this loader calls `name`.
  std::string StoredName(absl::string_view name) const;
  // Empty when absent.
  std::vector<int64_t> Shape(absl::string_view name) const;

  // Tensors that the family leaves aside on purpose (vision towers, tied heads): all whose names begin so, below this
  // loader's prefix.
  void IgnoreUnder(absl::string_view prefix);
  // Whole names of what was neither read nor ignored, ascending. Buffers that transformers computes for itself
  // (inv_freq, masked_bias, position_ids) never count.
  std::vector<std::string> Unused() const;

  const absl::Status& status() const;
  const Options& options() const;
  // Totals of the tensors returned so far, each counted once; the bytes do not include matrices.
  int64_t num_parameters() const;
  int64_t weight_bytes() const;

 private:
  struct State;
  WeightLoader(std::shared_ptr<State> state, std::string prefix);

  // The name as a checkpoint with the head has it, and then the ones that base_prefix makes of it.
  std::vector<std::string> StoredNames(absl::string_view name) const;

  // What becomes of a tensor's values.
  enum class Use { kKept, kPacked };
  at::Tensor Load(absl::string_view name, at::IntArrayRef shape, DType dtype, Use use = Use::kKept);
  // The tensor's place in the file, or null after an error.
  const TensorView* Find(const std::string& full_name, at::IntArrayRef shape);
  // Its values, converted and placed.
  at::Tensor Convert(const std::string& full_name, const TensorView& view, at::ScalarType from, at::ScalarType to,
                     Use use);
  void Count(const std::string& full_name, const at::Tensor& tensor, Use use);
  static at::Tensor WithoutValues(at::IntArrayRef shape, at::ScalarType type);
  void Fail(absl::Status status);

  std::shared_ptr<State> state_;
  std::string prefix_;
};

}  // namespace berth

#endif  // BERTH_MODELS_CHECKPOINT_WEIGHT_LOADER_H_
