// The arguments of the CUDA kernels that choose tokens. Logits are [rows, stride] numbers of the entry's type.
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
  const void* logits;
  int64_t rows, stride, vocab;
  int32_t* tokens;  // [rows]
  int32_t bad_token;
  MaskArgs masks;
};

// What is added to a token's logit; -inf bans it.
struct TokenBias {
  int32_t token;
  float bias;
};

// How a row's logits are changed before the choice, by the rules of models/sampling/sampler.h. Offsets are in bytes, in
// SampleArgs::tables. Tokens outside the vocabulary are passed over.
struct LogitEdits {
  int64_t biases, num_biases;  // TokenBias, in the order in which they apply
  int64_t history;             // tokens for the penalties: first those of the prompt, then those of the output
  int64_t num_prompt, num_history;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t is_forced;  // the tokens of `biases` have the logit 0, all others -inf, and nothing else applies
};

struct LogprobEntry {
  int32_t token;
  float logprob;
};

// How one row's token is chosen, by the rules of models/sampling/sampler.h.
struct SampleParams {
  double inverse_temperature = 0;  // 0: greedy, and the next four are not read
  double uniform = 0;              // the draw, in [0, 1)
  double top_p = 1;                // 1 or more: all tokens
  double min_p = 0;                // at most 1; 0: all tokens
  int64_t top_k = 0;               // 0: all tokens
  int64_t edits = -1;              // in SampleArgs::edits; -1: none
  int64_t num_top = -1;            // of the likeliest tokens' logprobs, at most kMostTop; -1: no logprobs at all
  int64_t logprobs = 0;            // in SampleArgs::logprobs: the chosen token's, then num_top
  int32_t ranks_allowed = 0;       // the likeliest are those that the mask allows
  int32_t sums_allowed = 0;        // logprobs are relative to those that the mask allows
};
inline constexpr int64_t kMostTop = 1024;

// tokens[row] = the token that Sampler chooses, or `bad_token` in the cases of GreedyArgs. Where that is a token, the
// row's logprobs are filled; entries that no possible token is left for have the token -1.
// Vocabularies have at most 2^21 tokens.
struct SampleArgs {
  const void* logits;
  int64_t rows, stride, vocab;
  const SampleParams* params;  // [rows], device memory
  const LogitEdits* edits;     // device memory
  const char* tables;          // device memory
  void* scratch;               // SampleScratchBytes(num_scratch, vocab, edits), on 16 bytes
  int64_t num_scratch;         // how many rows are computed at the same time
  bool has_edits;              // of any row
  int32_t* tokens;             // [rows]
  LogprobEntry* logprobs;
  int32_t bad_token;
  MaskArgs masks;
};
// Each row that is being computed has room for weights, for logits and ids of the tokens that are left after a cut, and
// for changed logits.
inline constexpr int64_t kScratchBytes = 16;  // for a token
inline constexpr int64_t kEditedBytes = 4;
inline constexpr int64_t SampleScratchBytes(int64_t num_scratch, int64_t vocab, bool has_edits) {
  return num_scratch * ((vocab + 3) / 4 * 4) * (kScratchBytes + (has_edits ? kEditedBytes : 0));
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_SAMPLING_SAMPLE_ARGS_H_
