#include "tests/testing/fake_constraint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/mix.h"

namespace berth {
namespace {

bool Contains(const std::vector<int32_t>& tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

absl::Status SimpleConstraint::FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks) {
  ++num_calls_;
  const int64_t words = MaskWords(vocab_size_);
  std::unique_ptr<SimpleConstraint> at = CloneSimple();
  for (size_t place = 0; place <= drafts.size(); ++place) {
    if (absl::Status status = at->Limit(); !status.ok()) return status;
    const absl::Span<uint32_t> mask = masks.subspan(place * words, words);
    std::fill(mask.begin(), mask.end(), 0);
    bool any = false;
    for (int32_t token = 0; token < vocab_size_ && !at->ended_; ++token) {
      if (!at->Allows(token)) continue;
      mask[token / 32] |= uint32_t{1} << (token % 32);
      any = true;
    }
    if (!any) return absl::FailedPreconditionError("a dead end");
    if (place == drafts.size()) break;
    if (absl::Status status = at->Accept(drafts[place]); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SimpleConstraint::Accept(int32_t token) {
  ++num_calls_;
  if (ended_ || !Allows(token)) return absl::InternalError(absl::StrCat("token ", token, " is not allowed"));
  if (IsEnd(token)) {
    ended_ = true;
  } else {
    Move(token);
  }
  return absl::OkStatus();
}

int64_t SimpleConstraint::CountAllowed(absl::Span<const int32_t> tokens) {
  ++num_calls_;
  std::unique_ptr<SimpleConstraint> at = CloneSimple();
  int64_t count = 0;
  for (int32_t token : tokens) {
    if (!at->Limit().ok() || !at->Accept(token).ok()) break;
    ++count;
  }
  return count;
}

absl::Status SimpleConstraint::AppendForced(int64_t limit, std::vector<int32_t>* tokens) {
  ++num_calls_;
  std::unique_ptr<SimpleConstraint> at = CloneSimple();
  for (; limit > 0 && !at->ended_ && at->Limit().ok(); --limit) {
    int32_t forced = -1;
    for (int32_t token = 0; token < vocab_size_; ++token) {
      if (!at->Allows(token)) continue;
      if (forced >= 0 || IsEnd(token)) return absl::OkStatus();
      forced = token;
    }
    if (forced < 0) return absl::OkStatus();
    tokens->push_back(forced);
    at->Move(forced);
  }
  return absl::OkStatus();
}

bool SimpleConstraint::IsComplete() {
  ++num_calls_;
  if (ended_) return true;
  bool may_end = false;
  for (int32_t token = 0; token < vocab_size_; ++token) {
    if (!Allows(token)) continue;
    if (!IsEnd(token)) return false;
    may_end = true;
  }
  return may_end;
}

FakeConstraint::FakeConstraint(Options options)
    : SimpleConstraint(options.vocab_size), options_(std::move(options)), state_(Mix(options_.seed)) {}

uint64_t FakeConstraint::Hash(uint64_t n) const { return Mix(state_ + n * 0x9E3779B9); }

FakeConstraint::Kind FakeConstraint::KindOf() const {
  if (length_ == 0) return Kind::kFree;
  const auto share = static_cast<int64_t>(Hash(1) % 100);
  if (share < options_.dead) return Kind::kDead;
  if (share < options_.dead + options_.complete && !options_.end_tokens.empty()) return Kind::kComplete;
  return share < options_.dead + options_.complete + options_.forced ? Kind::kForced : Kind::kFree;
}

bool FakeConstraint::Allows(int32_t token) const {
  const Kind kind = KindOf();
  if (kind == Kind::kDead) return false;
  if (IsEnd(token)) return kind == Kind::kComplete || (kind == Kind::kFree && length_ > 0 && Hash(2) % 8 == 0);
  if (kind == Kind::kComplete) return false;
  int64_t one = static_cast<int64_t>(Hash(3) % static_cast<uint64_t>(vocab_size()));
  while (IsEnd(static_cast<int32_t>(one))) one = (one + 1) % vocab_size();
  if (kind == Kind::kForced || token == one) return token == one;
  // At least two.
  return token == (one + 1) % vocab_size() || token == (one + 2) % vocab_size() ||
         Hash(100 + static_cast<uint64_t>(token)) % 3 == 0;
}

bool FakeConstraint::IsEnd(int32_t token) const { return Contains(options_.end_tokens, token); }

void FakeConstraint::Move(int32_t token) {
  state_ = Mix(state_ ^ static_cast<uint32_t>(token));
  ++length_;
}

absl::Status FakeConstraint::Limit() const {
  if (options_.fails_at < 0 || length_ < options_.fails_at) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the parser's limit of ", options_.fails_at, " tokens"));
}

bool ChoiceConstraint::Allows(int32_t token) const {
  for (const std::vector<int32_t>& choice : choices_) {
    if (choice.size() < output_.size() || !std::equal(output_.begin(), output_.end(), choice.begin())) continue;
    if (IsEnd(token) ? choice.size() == output_.size()
                     : choice.size() > output_.size() && choice[output_.size()] == token) {
      return true;
    }
  }
  return false;
}

bool ChoiceConstraint::IsEnd(int32_t token) const { return Contains(end_tokens_, token); }

}  // namespace berth
