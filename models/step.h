// One step's input and output: a ragged batch of rows, each with its new tokens and its place in the cache.
//
// Filled by the scheduler, read by the model runner; plain data, engine thread only. No torch here. The vectors keep
// their capacity from step to step.
#ifndef BERTH_MODELS_STEP_H_
#define BERTH_MODELS_STEP_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cache/lease.h"
#include "models/row_masks.h"

namespace berth {

// How the next token is chosen. Applied in this order (transformers' order): logit_bias, banned tokens, penalties,
// forced tokens, the constraint's mask, temperature, top_k, top_p, min_p. Defaults change nothing.
//
// So the mask has the last word on what is possible, and truncation counts only tokens that it allows. Where the mask
// allows only tokens that are banned, not forced, or impossible to the model, nothing is left: kNoAllowedToken.
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy
  int32_t top_k = 0;                // keep the k likeliest tokens; 0: all
  float top_p = 1.0f;               // keep the smallest set whose probability reaches top_p
  float min_p = 0.0f;               // keep tokens at least min_p times as likely as the likeliest; 0: all
  float repetition_penalty = 1.0f;  // divides positive, multiplies negative logits of prompt and output tokens
  float presence_penalty = 0.0f;    // subtracted once from the logit of each output token
  float frequency_penalty = 0.0f;   // subtracted for each occurrence in the output
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits of these tokens
  uint64_t seed = 0;          // with the token's position it decides the draw, whatever else is in the batch
  int32_t num_logprobs = -1;  // -1: none; n >= 0: the chosen token's and the n likeliest tokens'
  // Of a constrained row: the model's distribution over the tokens that the mask allows, instead of over all.
  bool logprobs_after_mask = false;

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// The most draft tokens of all rows of a step. Each has logits of its own, so they bound the memory of a step.
inline constexpr int64_t kMaxStepDrafts = 512;

// A row computes `tokens`, then `drafts`, at positions start, start + 1, and so on.
struct StepRow {
  const SequenceLease* lease = nullptr;  // already grown by num_tokens()
  absl::Span<const int32_t> tokens;      // known tokens of the sequence; at least one
  int64_t start = 0;                     // tokens whose cache is already written
  bool sample = false;                   // whether to choose the token that follows the last one
  // Draft tokens, which may follow `tokens`. The model also chooses a token in the place of each. Only greedy rows that
  // sample, without penalties or logprobs, have any.
  absl::Span<const int32_t> drafts;
  const SamplingParams* sampling = nullptr;
  absl::Span<const int32_t> history;  // the sequence up to the last of `tokens`, without drafts; for the penalties
  int64_t prompt_length = 0;          // of the whole prompt, computed or not
  int64_t sequence_length = 0;        // of prompt and output so far, computed or not, without drafts
  absl::Span<const int32_t> banned;   // tokens that may not be chosen yet (min_tokens)
  absl::Span<const int32_t> forced;   // not empty: equally likely, no other token may be chosen (forced BOS, EOS)

  // What may be chosen in the place of each draft and after the last token, in a constrained row that samples. The
  // masks are computed while the step runs: wait for them right before the choice. Null: any token.
  const RowMasks* masks = nullptr;
  // The known tokens that follow tokens[first_scored], tokens[first_scored + 1], and so on, in a row that computes
  // their logprobs; empty in others. With each, the logprobs of the num_scores - 1 likeliest tokens in its place.
  absl::Span<const int32_t> scored;
  int64_t first_scored = 0;
  int64_t num_scores = 0;
  // Rows that are embedded, which do not sample: the hidden states of this many of the last `tokens`, after the final
  // norm, are added to `pooled`. That is the sum over the pooled tokens before, or empty.
  int64_t num_pooled = 0;
  absl::Span<const double> pooled;
  bool rank_allowed = false;  // `top` has only tokens that the mask allows (candidates of a beam search)
  // Encoder-decoder models: all that the encoder reads, in the first row of a lease. The step then writes the lease's
  // cross blocks. Empty in every other row.
  absl::Span<const int32_t> encoder_tokens;

  int64_t num_drafts() const { return static_cast<int64_t>(drafts.size()); }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()) + num_drafts(); }
  bool past_prompt() const { return start >= prompt_length; }
};

// Rows that decode come first, then prefill chunks.
struct StepPlan {
  std::vector<StepRow> rows;
  int64_t num_tokens = 0;       // over all rows, the encoders' included
  int64_t num_decode_rows = 0;  // rows of one token that are past their prompt

  bool empty() const { return rows.empty(); }
  // Rows past their prompt: those that decode, check drafts, or catch up with tokens that are known already. The first
  // token of each is decoding to whoever measures steps; all other tokens of the step are prefill.
  int64_t num_rows_past_prompt() const {
    return std::count_if(rows.begin(), rows.end(), [](const StepRow& row) { return row.past_prompt(); });
  }
  // All tokens of these rows.
  int64_t num_tokens_past_prompt() const {
    int64_t count = 0;
    for (const StepRow& row : rows) count += row.past_prompt() ? row.num_tokens() : 0;
    return count;
  }
  void Clear() {
    rows.clear();
    num_tokens = 0;
    num_decode_rows = 0;
  }
};

struct TokenLogprob {
  int32_t token = -1;
  // Natural log, of the model's own distribution: before bias, penalties and temperature, and before the mask unless
  // logprobs_after_mask.
  float logprob = 0;
};

struct RowResult {
  // The chosen token; kNoToken for a row that did not sample. kBadLogits: a logit is NaN or +inf, or all are -inf.
  // kNoAllowedToken: the mask leaves no token to choose.
  static constexpr int32_t kNoToken = -1;
  static constexpr int32_t kBadLogits = -2;
  static constexpr int32_t kNoAllowedToken = -3;
  int32_t token = kNoToken;
  float logprob = 0;              // of the chosen token, when logprobs were asked for
  std::vector<TokenLogprob> top;  // likeliest first; empty unless asked for
  // For a row with drafts: the token that the model chooses in the place of each. `token` follows the last draft.
  std::vector<int32_t> verified_tokens;
  // For each of StepRow::scored, num_scores entries: its own, then those of the likeliest tokens, likeliest first. If
  // fewer tokens are possible, the rest are NaN; if logits are not finite, all are.
  std::vector<TokenLogprob> scores;
  // Where StepRow::num_pooled is not 0: the sum over the row's tokens and those before, added token by token.
  std::vector<double> pooled;
};

struct StepResult {
  std::vector<RowResult> rows;  // one per row of the plan
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_H_
