// Where one output, or one beam, is in its request's constraint. Without a constraint any token may come.
//
// Engine thread only, except for FillMasks, FindForced and KeepAllowed, whose time may grow with the vocabulary:
// workers call these, and have the object for themselves then (scheduler/output/mask_workers.h).
//
// An error of the constraint stays: from then on no token may come, so the output ends at its next token.
#ifndef BERTH_SCHEDULER_OUTPUT_OUTPUT_CONSTRAINT_H_
#define BERTH_SCHEDULER_OUTPUT_OUTPUT_CONSTRAINT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/token_constraint.h"
#include "scheduler/request.h"

namespace berth {

// Moves the request's constraint past the tokens of its progress, if it is to continue from there. This may take long:
// call it on the client's thread. INVALID_ARGUMENT: the constraint does not allow those tokens.
absl::Status ReplayProgress(Request* request);

class OutputConstraint {
 public:
  // No constraint.
  OutputConstraint() = default;
  // A copy of the request's constraint, for an output that has `num_generated` tokens. REQUIRES: ReplayProgress was
  // called where there is progress.
  OutputConstraint(const Request& request, int64_t num_generated);
  OutputConstraint(OutputConstraint&&) = default;
  OutputConstraint& operator=(OutputConstraint&&) = default;

  // A copy at the same position.
  OutputConstraint Clone() const;

  // Whether the constraint says what the next token may be.
  bool applies() const { return constraint_ != nullptr && num_free_ == 0; }
  // Whether nothing but the end may come.
  bool complete() { return applies() && error_.ok() && constraint_->IsComplete(); }
  // Why no token may come, or at which draft's place. OK: some may, or the constraint has not said why.
  const absl::Status& error() const { return error_.ok() ? place_error_ : error_; }

  // Moves past the output's next token.
  void Accept(int32_t token);
  // No token may come any more.
  void Close();
  // The tokens that FindForced found last.
  absl::Span<const int32_t> forced() const { return forced_; }

  // Drops the tokens of *drafts from the first on that may not come after those before it.
  void KeepAllowed(std::vector<int32_t>* drafts);
  // Finds the tokens that have to come next, at most `limit`, for forced().
  void FindForced(int64_t limit);
  // As TokenConstraint's, with empty masks from the first place on where no token may come. An error at a draft's place
  // does not matter where the model disagrees with the drafts before it.
  void FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks);

 private:
  std::unique_ptr<TokenConstraint> constraint_;
  std::vector<int32_t> forced_;
  int64_t num_free_ = 0;  // tokens before the constraint begins: a first token that the model's configuration forces
  absl::Status error_;
  absl::Status place_error_;  // of the first empty mask, if that is of a draft's place or after one
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_OUTPUT_CONSTRAINT_H_
