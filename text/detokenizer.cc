#include "text/detokenizer.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
constexpr size_t kMostCharacterBytes = 4;

bool ContinuesCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Whether a character may begin with these two bytes. The second byte continues it.
bool MayBegin(uint8_t lead, uint8_t second) {
  if (lead == 0xE0) return second >= 0xA0;
  if (lead == 0xED) return second < 0xA0;
  if (lead == 0xF0) return second >= 0x90;
  return lead != 0xF4 || second < 0x90;
}

// How many bytes at the end of `bytes` begin a character that they do not complete.
size_t OpenBytes(absl::string_view bytes) {
  size_t begin = bytes.size();
  while (begin > 0 && bytes.size() - begin < kMostCharacterBytes && ContinuesCharacter(bytes[begin - 1])) --begin;
  if (begin == 0) return 0;
  const auto lead = static_cast<uint8_t>(bytes[begin - 1]);
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  const size_t count = bytes.size() - begin + 1;
  if (count > 1 && !MayBegin(lead, static_cast<uint8_t>(bytes[begin]))) return 0;
  return count < length ? count : 0;
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, absl::Span<const int32_t> context)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {
  std::copy_if(context.begin(), context.end(), std::back_inserter(ids_),
               [&](int32_t id) { return tokenizer->Reads(id, skip_special_tokens); });
  DropPartOfCharacter();
  read_ = ids_.size();
  open_ = FindOpenCharacter();
  const absl::StatusOr<std::string> all = Decode(0, read_);
  if (open_.has_value() && all.ok()) open_->before = TextBefore(*open_, *all).value_or("");
}

absl::StatusOr<std::string> Detokenizer::Decode(size_t first, size_t last) const {
  return tokenizer_->Decode(absl::MakeConstSpan(ids_).subspan(first, last - first), skip_special_tokens_);
}

void Detokenizer::DropPartOfCharacter() {
  size_t count = 0;
  for (; count < ids_.size(); ++count) {
    const TokenText first = tokenizer_->TextOf(ids_[count]);
    if (first.bytes.empty() || !ContinuesCharacter(first.bytes[0])) break;
  }
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count));
}

std::optional<Detokenizer::OpenCharacter> Detokenizer::FindOpenCharacter() const {
  std::string tail;
  for (size_t first = ids_.size(); first > 0 && tail.size() < kMostCharacterBytes; --first) {
    const TokenText token = tokenizer_->TextOf(ids_[first - 1]);
    if (token.bytes.empty() && !token.text.empty()) return std::nullopt;  // whole characters
    tail = token.bytes + tail;
    const size_t open = OpenBytes(tail);
    if (open > 0) return OpenCharacter{.token = first - 1, .begins_token = open == tail.size(), .before = ""};
  }
  return std::nullopt;
}

absl::StatusOr<std::string> Detokenizer::TextBefore(const OpenCharacter& open, const std::string& all) const {
  // A byte-fallback decoder marks all bytes of a run, and not only those of the open character. Its tokens have one
  // byte each.
  if (open.begins_token) return Decode(0, open.token);
  return std::string(absl::StripSuffix(all, kReplacement));
}

absl::StatusOr<std::string> Detokenizer::NewText(const std::string& text, size_t end) const {
  const absl::StatusOr<std::string> read = Decode(0, read_);
  if (!read.ok()) return read.status();
  // If the open character was not completed, its mark is the context's.
  const bool after_mark = in_context_ && absl::StartsWith(text, *read);
  const std::string& before = open_.has_value() && !after_mark ? open_->before : *read;
  if (absl::StartsWith(text, before)) return text.substr(before.size());
  // Byte-fallback decoders turn a whole run of bytes into marks when a later byte makes it invalid, text that was
  // already shown included. What is new then stands alone.
  return end <= read_ ? "" : Decode(read_, end);
}

absl::StatusOr<std::string> Detokenizer::Step(bool last) {
  const absl::StatusOr<std::string> all = Decode(0, ids_.size());
  if (!all.ok()) return all.status();
  std::optional<OpenCharacter> open;
  if (!last && absl::EndsWith(*all, kReplacement)) open = FindOpenCharacter();
  const absl::StatusOr<std::string> sure = open.has_value() ? TextBefore(*open, *all) : all;
  if (!sure.ok()) return sure.status();
  absl::StatusOr<std::string> text = NewText(*sure, open.has_value() ? open->token : ids_.size());
  // Tokens without text stay: a space at the beginning may decide on that of the next word.
  if (!text.ok() || (text->empty() && !last)) return text;
  // The window begins with a whole character, or with a token that ends one.
  const size_t begin = open.has_value() ? open->token : open_.has_value() ? open_->token : read_;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(begin));
  read_ = ids_.size();
  in_context_ = false;
  open_ = open;
  if (!open_.has_value()) return text;
  open_->token = 0;
  const absl::StatusOr<std::string> window = Decode(0, read_);
  if (!window.ok()) return window.status();
  open_->before = TextBefore(*open_, *window).value_or("");
  return text;
}

void Detokenizer::DropRepeatedEmpty() {
  if (ids_.size() < read_ + 2) return;
  const auto is_empty = [&](int32_t id) { return tokenizer_->TextOf(id).text.empty(); };
  if (is_empty(ids_.back()) && is_empty(ids_[ids_.size() - 2])) ids_.pop_back();
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
    if (piece->empty()) DropRepeatedEmpty();
    text += *piece;
  }
  return text;
}

absl::StatusOr<std::string> Detokenizer::Flush() { return Step(/*last=*/true); }

}  // namespace berth
