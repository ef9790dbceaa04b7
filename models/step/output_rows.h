// The tokens of a step whose outputs are read: a token is chosen after them, or they are scored or pooled. The layers
// after the last one that writes to the cache need compute no others, because no later token sees what they give.
// Without torch. Engine thread only.
#ifndef BERTH_MODELS_STEP_OUTPUT_ROWS_H_
#define BERTH_MODELS_STEP_OUTPUT_ROWS_H_

#include <cstdint>
#include <vector>

#include "models/step.h"

namespace berth {

class OutputRows {
 public:
  // Chooses from each row its tokens from the first that is read to the last. Returns false, and chooses none, if that
  // is every token of the step.
  bool Choose(const StepPlan& step);
  void Clear();

  // The chosen tokens as rows that begin later, and end where the last one is. Rows without any are missing. What the
  // rows point to is the step's. Empty: no output of the step is read.
  const StepPlan& plan() const { return plan_; }
  // Their indices among the packed tokens of the step.
  const std::vector<int64_t>& tokens() const { return tokens_; }

 private:
  StepPlan plan_;
  std::vector<int64_t> tokens_;
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_OUTPUT_ROWS_H_
