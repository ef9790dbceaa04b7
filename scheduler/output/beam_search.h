// Beam search over log-probabilities: which beams continue, which have ended, and when the search is over. Computes
// exactly what transformers 5.24 does (GenerationMixin._beam_search), in float32 as there. Knows no cache, sequence or
// model: plain values in and out. Thread-compatible.
//
// In a step each beam offers its likeliest tokens. The best few of all candidates are kept, by the sum of logprobs. The
// best num_beams of those that do not end continue. Beams that end count if they are among the num_beams best. The
// num_beams best ended beams are remembered, by their sum over length^length_penalty. Among equal candidates the lower
// beam comes first, then the lower token.
#ifndef BERTH_SCHEDULER_OUTPUT_BEAM_SEARCH_H_
#define BERTH_SCHEDULER_OUTPUT_BEAM_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "models/step.h"
#include "scheduler/request.h"

namespace berth {

class BeamSearch {
 public:
  struct Beam {
    std::vector<int32_t> tokens;  // output only
    std::vector<float> logprobs;  // of each token
    float score = 0;              // the sum of its logprobs; for an ended beam, over length^length_penalty
    bool ended = false;
    int parent = 0;  // for a beam that continues: the beam that it extends
  };
  // What the model says about the token after a beam.
  struct Row {
    absl::Span<const TokenLogprob> top;  // NumCandidates of them, or all that a constraint allows; likeliest first
    absl::Span<const int32_t> banned;    // ascending; may not be chosen
    absl::Span<const int32_t> forced;    // if not empty: the only choices, with logprob 0 each, as in transformers
  };

  // How many of each row's likeliest tokens a step needs.
  static int64_t NumCandidates(const Request& request);

  // REQUIRES: ValidateRequest accepts the request, and its stop tokens are sorted.
  explicit BeamSearch(const Request& request);

  // Extends the beams by a token. Where no row has a candidate, the search is over. REQUIRES: !over(), and one row per
  // beam.
  void Step(absl::Span<const Row> rows);

  // Whether no beam continues; ended() is then the result.
  bool over() const { return over_; }
  // The beams that continue, likeliest first. At the start all are empty, and only the first counts.
  const std::vector<Beam>& running() const { return running_; }
  // The best beams, best first: num_beams of them. Once the search is over all have ended, unless the candidates were
  // too few.
  const std::vector<Beam>& ended() const { return ended_; }

 private:
  struct Candidate {
    int beam;
    int32_t token;
    float logprob;
    float score;
    bool ends;
  };

  void CollectCandidates(absl::Span<const Row> rows);
  void Extend(const Candidate& candidate, Beam* beam) const;
  void UpdateEnded();
  void UpdateRunning();
  bool CanImprove() const;
  // `sum` over length^length_penalty.
  float Normalized(float sum, int64_t length) const;

  const BeamParams params_;
  const int64_t max_tokens_;
  const std::vector<int32_t> stop_token_ids_;  // sorted
  int64_t length_ = 0;
  bool over_ = false;
  std::vector<Beam> running_;
  std::vector<Beam> ended_;
  std::vector<Beam> next_;  // of both; keeps its storage
  std::vector<Candidate> candidates_;
  std::vector<int> order_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_BEAM_SEARCH_H_
