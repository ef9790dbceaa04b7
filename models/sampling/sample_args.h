// The arguments of the CUDA kernels that choose tokens.
#ifndef BERTH_MODELS_SAMPLING_SAMPLE_ARGS_H_
#define BERTH_MODELS_SAMPLING_SAMPLE_ARGS_H_

#include <stdint.h>

namespace berth::ops {

// The masks of those rows that have one, in device memory (models/row_masks.h). A token without its bit counts as -inf.
struct MaskArgs {
  const uint32_t* words = nullptr;   // [masks, words_per_mask]; null: no row has a mask
  const int32_t* mask_of = nullptr;  // [rows]: the row's mask, counted from 0; -1: none
  int64_t words_per_mask = 0;
  int32_t no_allowed_token = 0;  // the row's answer where the mask alone leaves no logit above -inf
};

// tokens[row] = the lowest argmax of logits, or `bad_token` where one is NaN or +inf or none is above -inf.
struct GreedyArgs {
  const float* logits;  // [rows, stride]
  int64_t rows, stride, vocab;
  int32_t* tokens;  // [rows]
  int32_t bad_token;
  MaskArgs masks;
};

// How one row's token is chosen, by the rules of models/sampling/sampler.h.
struct SampleParams {
  double inverse_temperature;  // 0: greedy, and the rest is not read
  double uniform;              // the draw, in [0, 1)
  double top_p;                // 1 or more: all tokens
  double min_p;                // at most 1; 0: all tokens
  int64_t top_k;               // 0: all tokens
};

// tokens[row] = the token that Sampler chooses, or `bad_token` in the cases of GreedyArgs.
// Vocabularies have at most 2^21 tokens.
struct SampleArgs {
  const float* logits;  // [rows, stride]
  int64_t rows, stride, vocab;
  const SampleParams* params;  // [rows], device memory
  void* scratch;               // SampleScratchBytes(num_scratch, vocab), on 16 bytes
  int64_t num_scratch;         // how many rows are computed at the same time
  int32_t* tokens;             // [rows]
  int32_t bad_token;
  MaskArgs masks;
};
// Each row that is being computed has room for its weights, and for the logits and ids that top_k keeps.
inline constexpr int64_t SampleScratchBytes(int64_t num_scratch, int64_t vocab) {
  return num_scratch * ((vocab + 3) / 4 * 4) * 16;
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_SAMPLING_SAMPLE_ARGS_H_
