// Chooses one row's next token on the CPU. No sort of the vocabulary, and no allocation once a Sampler has seen its
// largest row. Thread-compatible: one Sampler per thread; it holds scratch, nothing of a sequence. Torch-free.
//
// The rules (models/step.h says in which order; transformers' logits_process.py is the model):
//  - A token that the mask does not allow counts as one with the logit -inf. The passes over the row read the mask; no
//    logit is copied for it.
//  - A token's rank is its logit, then its id: of equals the lower id is the likelier. So greedy is the lowest argmax,
//    and top_p near 0 chooses as greedy does.
//  - Weight of a token: exp((logit - max) / temperature), in double.
//  - top_k keeps every token whose logit is at least the k-th largest: ties stay, as in TopKLogitsWarper.
//  - top_p keeps a token while the tokens before it in rank hold less than top_p of the weight that top_k kept.
//  - min_p keeps a token whose weight is at least min_p times the largest, which is 1.
//  - The draw: UniformAt(seed, position) times the weight kept, looked up among the kept tokens in ascending id.
// The likeliest token passes every rule, so one token at least is kept. SampleRowsReference follows the same rules by
// other means; their weights differ by some 1e-15, so a draw would differ only that near to a boundary.
#ifndef BERTH_MODELS_SAMPLING_SAMPLER_H_
#define BERTH_MODELS_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "models/step.h"

namespace berth {

// Position of the token that follows the row's new ones. It decides the draw, together with the seed.
inline int64_t SampledPosition(const StepRow& row) { return row.start + row.num_tokens(); }

// Whether anything changes the row's logits before the choice.
bool ChangesLogits(const StepRow& row);

// The place after the last draft.
inline constexpr int64_t kAfterDrafts = -1;
// Waits for the row's masks. Returns that of a place; null: any token may come.
const uint32_t* MaskOf(const StepRow& row, int64_t draft);

class Sampler {
 public:
  // Chooses the token that follows `row`, or that comes in the place of its draft number `draft`. Waits for the mask of
  // that place. Fills token, logprob and top of `result`. The token is kBadLogits when a logit is NaN or +inf, or when
  // none is above -inf, as the model gave them or after bias, bans and penalties. Else it is kNoAllowedToken when the
  // mask leaves none above -inf.
  // logits: [vocab]. Token ids outside the vocabulary (in history, bias, banned, forced) are passed over.
  // REQUIRES: row.sampling is set and valid (temperature finite and >= 0, repetition_penalty > 0); vocab > 0.
  void SampleRow(absl::Span<const float> logits, const StepRow& row, RowResult* result, int64_t draft = kAfterDrafts);

  // Fills `scores` with `token`'s logprob, and after it those of the likeliest tokens, likeliest first. All are NaN if
  // a logit is NaN or +inf, or none is above -inf. Allocates nothing once it has seen its largest row. REQUIRES: 1 <=
  // scores.size() <= 1 + vocab, and `token` is in the vocabulary.
  void Score(absl::Span<const float> logits, int32_t token, absl::Span<TokenLogprob> scores);

  // For tests: the kept tokens, ascending, and their probabilities, as of the last SampleRow that was neither greedy
  // nor kBadLogits.
  std::vector<std::pair<int32_t, double>> LastDistribution() const;

 private:
  // Logits, and which tokens they allow.
  struct Logits {
    const float* x;
    const uint32_t* mask;  // null: all
    int64_t n;

    bool Allows(int64_t i) const { return mask == nullptr || (mask[i / 32] >> (i % 32) & 1) != 0; }
  };
  static constexpr int32_t kGood = 0;

  // Fills lane_max_. Returns kGood, with the largest allowed logit in *max, or why the row cannot be sampled from.
  int32_t Scan(const Logits& logits, float* max);
  // Fills result->top. Returns the log of the sum that logprobs are relative to. REQUIRES: `max` is of the model's
  // logits, and lane_max_ too.
  double FillLogprobs(const Logits& model, const uint32_t* mask, const StepRow& row, float max, RowResult* result);
  // logits changed as the row asks, in edited_.
  const float* Edit(absl::Span<const float> logits, const StepRow& row);
  // Candidates: allowed x[i] >= bound, ascending i, into candidate_ids_; with a mask, only those above -inf.
  // REQUIRES: lane_max_ is of the logits.
  void Collect(const Logits& logits, float bound);
  // -inf if fewer than k are allowed. REQUIRES: 0 < k <= n and lane_max_ is of the logits.
  float KthLargest(const Logits& logits, int64_t k);
  void TopLogprobs(const Logits& logits, int64_t count, double log_sum, std::vector<TokenLogprob>* top);
  int32_t Draw(Logits logits, float max, const SamplingParams& params, double uniform);
  // Index of the last element, in rank, of the smallest set whose weight reaches `limit`.
  int64_t NucleusEnd(const Logits& logits, float max, double inverse_temperature, double limit);
  // Like NucleusEnd, but among the given indices, which are reordered; `before` is the weight of all that ranks above
  // them.
  int64_t NucleusEndAmong(const float* x, double before, double limit, std::vector<int32_t>* indices) const;
  int64_t PickByWeight(int64_t n, double uniform);

  // Scratch: the current row uses the first elements of each.
  std::vector<float> edited_;
  std::vector<float> lane_max_;
  std::vector<float> selection_;        // nth_element's copy
  std::vector<int32_t> candidate_ids_;  // what top_k keeps, or the top logprobs
  std::vector<float> candidate_logits_;
  std::vector<double> weights_;      // of the candidates, or of the whole vocabulary
  std::vector<double> block_sums_;   // of weights_
  std::vector<int32_t> buckets_;     // of the candidates
  std::vector<double> bucket_mass_;  // by bucket
  std::vector<int32_t> ranked_;      // indices within one bucket
  std::vector<TokenLogprob> top_;    // Score's
  std::vector<uint32_t> seen_;       // by token: the epoch_ in which it was last met
  std::vector<int32_t> counts_;      // by token: occurrences in the output; all 0 between rows
  uint32_t epoch_ = 0;
  // What LastDistribution tells.
  int64_t num_weights_ = 0;
  bool drew_from_candidates_ = false;
};

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_SAMPLER_H_
