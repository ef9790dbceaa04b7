#include "text/detokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
// A character has at most 4 bytes, so at most 4 tokens. After this many tokens, a trailing replacement mark does not
// begin a character: it is text (or noise) of its own.
constexpr size_t kMaxHeldTokens = 8;

}  // namespace

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, absl::Span<const int32_t> context)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      ids_(context.begin(), context.end()),
      read_(context.size()) {}

absl::StatusOr<std::string> Detokenizer::Decode(size_t first, size_t last) const {
  return tokenizer_->Decode(absl::MakeConstSpan(ids_).subspan(first, last - first), skip_special_tokens_);
}

absl::StatusOr<std::string> Detokenizer::Step(bool last) {
  const absl::StatusOr<std::string> before = Decode(prefix_, read_);
  if (!before.ok()) return before.status();
  const absl::StatusOr<std::string> all = Decode(prefix_, ids_.size());
  if (!all.ok()) return all.status();
  const bool complete = !absl::EndsWith(*all, kReplacement) || ids_.size() - read_ > kMaxHeldTokens;
  if (!last && !complete) return "";
  std::string text;
  if (absl::StartsWith(*all, *before)) {
    text = all->substr(before->size());
  } else {
    // Byte-fallback decoders turn a whole run of bytes into marks when a later byte makes it invalid, text that was
    // already shown included. What is new then stands alone.
    absl::StatusOr<std::string> alone = Decode(read_, ids_.size());
    if (!alone.ok()) return alone.status();
    text = *std::move(alone);
  }
  // Tokens without text stay: a space at the beginning may decide on that of the next word.
  if (text.empty() && !last) return "";
  prefix_ = read_;
  read_ = ids_.size();
  // Tokens before the context can no longer change anything.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(prefix_));
  read_ -= prefix_;
  prefix_ = 0;
  return text;
}

absl::StatusOr<std::string> Detokenizer::Add(absl::Span<const int32_t> ids) {
  std::string text;
  for (int32_t id : ids) {
    if (id < 0) return absl::InvalidArgumentError(absl::StrCat("token id ", id, " is negative"));
    // Any number of tokens that decoding leaves out may come within a character.
    if (!tokenizer_->Reads(id, skip_special_tokens_)) continue;
    ids_.push_back(id);
    absl::StatusOr<std::string> piece = Step(/*last=*/false);
    if (!piece.ok()) return piece.status();
    text += *piece;
  }
  return text;
}

absl::StatusOr<std::string> Detokenizer::Flush() { return Step(/*last=*/true); }

}  // namespace berth
