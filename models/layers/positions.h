// Absolute positions as vectors added to the embedded tokens: learned tables (bart) and sinusoids (m2m_100), for the
// encoder's tokens and the decoder's. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_POSITIONS_H_
#define BERTH_MODELS_LAYERS_POSITIONS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/step/step_batch.h"

namespace berth {

class PositionEmbedding {
 public:
  virtual ~PositionEmbedding() = default;
  // [tokens, hidden], in the model's type, of batch.encoder()'s tokens.
  virtual at::Tensor Encoder(const StepBatch& batch) = 0;
  // As Encoder, of the batch's own tokens.
  virtual at::Tensor Decoder(const StepBatch& batch) = 0;
};

// Row offset + position of a table; one table for each side.
class LearnedPositions : public PositionEmbedding {
 public:
  // encoder, decoder: [offset + positions, hidden].
  LearnedPositions(at::Tensor encoder, at::Tensor decoder, int64_t offset);

  at::Tensor Encoder(const StepBatch& batch) override;
  at::Tensor Decoder(const StepBatch& batch) override;

 private:
  at::Tensor encoder_, decoder_;
  int64_t offset_;
};

// The sinusoids of tensor2tensor, sines then cosines. Padding tokens have none and are not counted: the n-th other
// token of a prompt has row n + padding. A generated token has the row of its plain position, as in transformers once
// there is a cache.
class SinusoidalPositions : public PositionEmbedding {
 public:
  // REQUIRES: hidden >= 4.
  SinusoidalPositions(int64_t hidden, int64_t padding, at::ScalarType type, at::Device device);

  at::Tensor Encoder(const StepBatch& batch) override;
  at::Tensor Decoder(const StepBatch& batch) override;

 private:
  at::Tensor Rows(const std::vector<int64_t>& rows);
  // Extends the table to hold row `row`, doubling.
  void Cover(int64_t row);

  int64_t hidden_;
  int64_t padding_;
  at::ScalarType type_;
  at::Device device_;
  at::Tensor table_;           // [rows, hidden]
  std::vector<int64_t> rows_;  // scratch
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_POSITIONS_H_
