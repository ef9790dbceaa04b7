// Constraints over token ids without a grammar: one that is a hash of all tokens before, and one of given outputs.
// Deterministic. Thread-compatible: ThreadSanitizer sees two threads that use one at a time.
#ifndef BERTH_TESTS_TESTING_FAKE_CONSTRAINT_H_
#define BERTH_TESTS_TESTING_FAKE_CONSTRAINT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/token_constraint.h"

namespace berth {

// A constraint that says only which tokens may come at its position; the rest follows.
class SimpleConstraint : public TokenConstraint {
 public:
  explicit SimpleConstraint(int64_t vocab_size) : vocab_size_(vocab_size) {}

  absl::Status FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks) override;
  absl::Status Accept(int32_t token) override;
  int64_t CountAllowed(absl::Span<const int32_t> tokens) override;
  absl::Status AppendForced(int64_t limit, std::vector<int32_t>* tokens) override;
  bool IsComplete() override;

 protected:
  virtual std::unique_ptr<SimpleConstraint> CloneSimple() const = 0;
  // Whether the token may come next. An end token may come exactly where the output may end.
  virtual bool Allows(int32_t token) const = 0;
  virtual bool IsEnd(int32_t token) const = 0;
  virtual void Move(int32_t token) = 0;
  // An error of the parser at the present position.
  virtual absl::Status Limit() const { return absl::OkStatus(); }

  std::unique_ptr<TokenConstraint> Clone() const final { return CloneSimple(); }
  int64_t vocab_size() const { return vocab_size_; }

 private:
  int64_t vocab_size_;
  int64_t num_calls_ = 0;  // changed by every call, for ThreadSanitizer
  bool ended_ = false;     // an end token was accepted
};

// The tokens that may come are a hash of those before. Some positions leave one token only, often several in a row;
// some also let the output end, or nothing else; some are dead ends.
class FakeConstraint : public SimpleConstraint {
 public:
  struct Options {
    uint64_t seed = 1;
    int64_t vocab_size = 100;
    std::vector<int32_t> end_tokens;
    // Percent of positions, all but the first.
    int64_t forced = 50;
    int64_t complete = 4;
    int64_t dead = 0;
    int64_t fails_at = -1;  // the parser's limit, in tokens; -1: none
  };
  explicit FakeConstraint(Options options);

 protected:
  std::unique_ptr<SimpleConstraint> CloneSimple() const override { return std::make_unique<FakeConstraint>(*this); }
  bool Allows(int32_t token) const override;
  bool IsEnd(int32_t token) const override;
  void Move(int32_t token) override;
  absl::Status Limit() const override;

 private:
  enum class Kind { kFree, kForced, kComplete, kDead };
  Kind KindOf() const;
  // The n-th hash of the position.
  uint64_t Hash(uint64_t n) const;

  Options options_;
  uint64_t state_;
  int64_t length_ = 0;
};

// The output is one of `choices`, then an end token. A choice may be the beginning of another.
class ChoiceConstraint : public SimpleConstraint {
 public:
  ChoiceConstraint(std::vector<std::vector<int32_t>> choices, std::vector<int32_t> end_tokens, int64_t vocab_size = 100)
      : SimpleConstraint(vocab_size), choices_(std::move(choices)), end_tokens_(std::move(end_tokens)) {}

 protected:
  std::unique_ptr<SimpleConstraint> CloneSimple() const override { return std::make_unique<ChoiceConstraint>(*this); }
  bool Allows(int32_t token) const override;
  bool IsEnd(int32_t token) const override;
  void Move(int32_t token) override { output_.push_back(token); }

 private:
  std::vector<std::vector<int32_t>> choices_;
  std::vector<int32_t> end_tokens_;
  std::vector<int32_t> output_;
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_FAKE_CONSTRAINT_H_
