// Keeps steps short while sequences decode: says how many tokens a step may prefill beside them, so that a long prompt
// does not hold up their next tokens. Engine thread only.
//
// The pacer learns two times from the steps: that of one which only decodes, and that of one more prefilled token. It
// also learns a margin: how far the slowest of a hundred steps exceeds what the two times predict. A step gets as many
// tokens as fit into the target with that margin, whatever model, machine and context.
//
// Where decoding alone takes most of the target or more, prefill still gets a quarter of the target in each step. So
// prompts progress, and a step takes at most the target and that of one which decodes.
#ifndef BERTH_SCHEDULER_POLICY_STEP_PACER_H_
#define BERTH_SCHEDULER_POLICY_STEP_PACER_H_

#include <cstdint>

#include "absl/time/time.h"

namespace berth {

class StepPacer {
 public:
  // With a target of 0 there is no limit.
  explicit StepPacer(absl::Duration target) : target_(target) {}

  // The most tokens that a step may prefill beside sequences past their prompts. At least 1, but 0 in every 64th step
  // in a row with prefill, which shows what decoding alone takes.
  int64_t MostPrefillTokens() const;

  // Takes in a step that succeeded: its time, the sequences past their prompts, and all tokens beside one of each of
  // those (drafts and encoder input included).
  void OnStep(absl::Duration time, int64_t prefill_tokens, int64_t decode_rows);

 private:
  // Whether the step is one that shows what decoding alone takes.
  bool probes() const;
  // What the target leaves for prefill.
  absl::Duration TimeForPrefill() const;

  const absl::Duration target_;
  absl::Duration decode_time_;  // of a step that only decodes; 0: not known
  absl::Duration token_time_;   // of a prefilled token; 0: not known
  int64_t num_mixed_ = 0;       // steps with prefill since the last without
  double margin_ = 1;           // a step of 99 in 100 takes at most this times what is predicted
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_POLICY_STEP_PACER_H_
