#include "scheduler/output/output_constraint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

// Tokens of the output that come before the constraint's first.
int64_t NumFree(const Request& request) { return request.forced_first.empty() ? 0 : 1; }

}  // namespace

absl::Status ReplayProgress(Request* request) {
  if (request->constraint == nullptr || request->progress == nullptr) return absl::OkStatus();
  const Progress& progress = *request->progress;
  if (progress.finish != FinishReason::kNone) return absl::OkStatus();
  absl::Span<const int32_t> tokens = progress.tokens;
  tokens.remove_prefix(std::min<size_t>(tokens.size(), static_cast<size_t>(NumFree(*request))));
  std::unique_ptr<TokenConstraint> constraint = request->constraint->Clone();
  for (int32_t token : tokens) {
    if (constraint->CountAllowed({&token, 1}) < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("progress of ", progress.tokens.size(), " tokens does not follow the constraint"));
    }
    if (absl::Status status = constraint->Accept(token); !status.ok()) return status;
  }
  request->constraint = std::move(constraint);
  return absl::OkStatus();
}

OutputConstraint::OutputConstraint(const Request& request, int64_t num_generated) {
  if (request.constraint == nullptr) return;
  constraint_ = request.constraint->Clone();
  num_free_ = std::max<int64_t>(0, NumFree(request) - num_generated);
}

OutputConstraint OutputConstraint::Clone() const {
  OutputConstraint copy;
  if (constraint_ != nullptr) copy.constraint_ = constraint_->Clone();
  copy.num_free_ = num_free_;
  copy.error_ = error_;
  return copy;
}

void OutputConstraint::Accept(int32_t token) {
  if (num_free_ > 0) {
    --num_free_;
  } else if (constraint_ != nullptr && error_.ok()) {
    error_ = constraint_->Accept(token);
  }
}

void OutputConstraint::Close() {
  if (constraint_ != nullptr) error_ = absl::OutOfRangeError("the output has ended");
}

void OutputConstraint::KeepAllowed(std::vector<int32_t>* drafts) {
  if (applies()) drafts->resize(error_.ok() ? static_cast<size_t>(constraint_->CountAllowed(*drafts)) : 0);
}

void OutputConstraint::FindForced(int64_t limit) {
  forced_.clear();
  if (!applies() || !error_.ok() || limit <= 0) return;
  error_ = constraint_->AppendForced(limit, &forced_);
  if (!error_.ok()) forced_.clear();
}

void OutputConstraint::FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks) {
  const size_t num_words = masks.size() / (drafts.size() + 1);
  size_t num_filled = 0;  // masks
  place_error_ = absl::OkStatus();
  for (size_t count = drafts.size() + 1; error_.ok() && count > 0; --count) {
    const absl::Status status = constraint_->FillMasks(drafts.first(count - 1), masks.first(count * num_words));
    if (status.ok()) {
      num_filled = count;
      break;
    }
    (count == 1 ? error_ : place_error_) = status;
  }
  std::fill(masks.begin() + static_cast<int64_t>(num_filled * num_words), masks.end(), 0);
}

}  // namespace berth
