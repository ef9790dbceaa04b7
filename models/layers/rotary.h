// Rotary position embedding: cosines and sines by position, in float32, computed once and shared by the layers.
// Frequencies are computed as in transformers' modeling_rope_utils.py, by the same ATen operations in the same order.
// An angle is position * frequency, so an error in the last bit of a frequency grows with the position. Engine thread
// only.
#ifndef BERTH_MODELS_LAYERS_ROTARY_H_
#define BERTH_MODELS_LAYERS_ROTARY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/checkpoint/config_fields.h"
#include "models/ops/elementwise/elementwise.h"
#include "models/step/step_batch.h"

namespace berth {

// The rope types that RotaryEmbedding implements and every family may use. Give them to ReadRope, which refuses others.
//
// "dynamic" (NTK by length): a token's frequencies depend on the sequence's length when the token is first computed.
// For tokens of the prompt that is the prompt's length, for others their own position. The list does not have
// "longrope": when a sequence outgrows the trained length, the frequencies of all its tokens change. Only a family that
// reports that length to the scheduler may ask for it (phi3).
const std::vector<absl::string_view>& RotaryTypes();

class RotaryEmbedding {
 public:
  // Tables end here: 64 MiB for heads of 128. A step with later positions computes those of its own tokens, on the
  // host.
  static constexpr int64_t kTablePositions = int64_t{1} << 17;

  // REQUIRES: rope.type is one of RotaryTypes() or "longrope"; head_dim is even.
  RotaryEmbedding(const RopeConfig& rope, int64_t head_dim, at::Device device);

  // The longest sequence up to which a token's rotation depends on its position alone; 0: no limit.
  int64_t length_invariant_until() const;

  // The rotations of the batch's tokens, by their positions. They may change with the next step.
  ops::Rotation Of(const StepBatch& batch);

 private:
  struct Tables {
    at::Tensor cos, sin;  // [rows, rotary_dim / 2]
  };

  // The tables that serve the batch, and the rows of its tokens into rows_. `in_tables`: all positions are in tables_.
  const Tables& SelectRows(const StepBatch& batch, bool in_tables);
  void FillDynamic(const StepBatch& batch);
  // Extends the tables to hold `position`, up to a power of two. A CUDA graph's step counts as one of that many
  // positions, so the step before the recorded one has already extended them.
  void Cover(int64_t position);
  // The tables of positions [n], float32. For longrope, n more rows follow with the long frequencies.
  Tables TablesOf(const at::Tensor& positions) const;
  Tables TablesOfAngles(const at::Tensor& angles) const;

  RopeConfig rope_;
  int64_t head_dim_;
  int64_t rotary_dim_;
  at::Device device_;
  double attention_factor_;      // of cosines and sines
  at::Tensor frequencies_;       // [rotary_dim / 2], on the CPU
  at::Tensor long_frequencies_;  // longrope: past the trained length
  int64_t covered_ = 0;          // positions in the tables; longrope has as many rows again for the long ones
  Tables tables_;
  std::vector<Tables> replaced_;         // smaller ones, which CUDA graphs may still read
  Tables step_;                          // of one step's positions, where the tables do not serve
  std::vector<int64_t> step_positions_;  // those
  std::vector<int64_t> rows_;            // by token, where these are not the positions; of the last step
  // The same on the device, and which those are. All layers of a step have the same.
  at::Tensor device_rows_;
  std::vector<int64_t> rows_on_device_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_ROTARY_H_
