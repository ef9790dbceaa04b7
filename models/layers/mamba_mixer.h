// The mixer of Mamba-1 (Gu and Dao, 2023). One input product is split in x and gate. A short causal convolution of x
// follows; its output gives B, C and a low-rank time step per channel. Then come the recurrence, the gate and the
// output product. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_MAMBA_MIXER_H_
#define BERTH_MODELS_LAYERS_MAMBA_MIXER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/spec.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/ops/mamba/mamba.h"
#include "models/ops/matmul/matmul.h"
#include "models/step/step_batch.h"

namespace berth {

struct MambaConfig {
  int layer = 0;  // of the model
  int64_t hidden = 0;
  int64_t inner = 0;  // channels
  int64_t state_dim = 0;
  int64_t dt_rank = 0;
  int64_t kernel = 0;  // of the convolution
  bool conv_bias = false;
  bool proj_bias = false;  // of the input and the output product

  // Root-mean-square norms of the low-rank time step, B and C: jamba's learned ones, falcon_mamba's without weights.
  enum class Norms { kNone, kWeightless, kLearned };
  Norms norms = Norms::kNone;
  double norm_eps = 0;

  // zamba: this many heads of inner / heads channels, each with its own B, C and time step product; 0: no heads. Its
  // checkpoints store x and gate of the input product in alternating rows.
  int64_t heads = 0;

  int64_t groups() const { return heads > 0 ? heads : 1; }
};

class MambaMixer : public Mixer {
 public:
  // Reads `prefix`in_proj, conv1d, x_proj, dt_proj, A_log, D, out_proj, and the norms dt_layernorm, b_layernorm,
  // c_layernorm where learned; with heads x_proj_weight, dt_proj_weight, dt_proj_bias. Errors stick to the loader.
  static std::unique_ptr<MambaMixer> Load(WeightLoader& weights, const std::string& prefix, const MambaConfig& config);

  // Two states: the convolution's inputs, in the model's type, and the recurrent state in float32.
  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  void LoadProjections(WeightLoader& weights, const std::string& prefix);
  void LoadNorms(WeightLoader& weights, const std::string& prefix);
  // dt, B and C from the convolved x, into `inputs`.
  void Project(ops::MambaInputs& inputs, Execution& execution) const;

  MambaConfig config_;
  Linear in_, out_;
  at::Tensor conv_weight_;  // [kernel, inner], float32
  at::Tensor conv_bias_;    // [inner], float32, or undefined
  // By group: [dt_rank + 2 * state_dim, inner / groups] and [inner / groups, dt_rank].
  std::vector<ops::PackedMatrix> x_proj_, dt_proj_;
  at::Tensor a_;            // [state_dim, inner], float32
  at::Tensor d_, dt_bias_;  // [inner], float32
  Norm dt_norm_, b_norm_, c_norm_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_MAMBA_MIXER_H_
