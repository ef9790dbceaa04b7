// A recursive-descent parser that writes Lark as it reads.
//
// In EBNF a text is a sequence of characters. In Lark it is one of lexemes, and a lexeme takes as many characters as it
// can: /[0-9]*/ /[0-9]/ never ends. So each character becomes a lexeme of its own, and the grammar says all the rest.
// Such lexemes are never ambiguous in their length.
//
//   root ::= "ab" digit*        start: ("a" "b") r1_digit*
//   digit ::= [0-9\u00b2]       r1_digit: /[\x{30}-\x{39}\x{b2}]/
#include "text/ebnf.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace berth {
namespace {

constexpr int kMaxDepth = 64;           // of groups within groups
constexpr int kMaxRepetitions = 10000;  // in {n,m}
constexpr uint32_t kLastCharacter = 0x10FFFF;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; }

std::string RegexCharacter(uint32_t character) { return absl::StrFormat("\\x{%x}", character); }

// One character of the output, as a lexeme.
std::string Lexeme(uint32_t character) {
  const bool plain = character < 0x80 && (absl::ascii_isalnum(static_cast<unsigned char>(character)) ||
                                          absl::StrContains(" _,.:;=+", static_cast<char>(character)));
  if (plain) return absl::StrCat("\"", std::string(1, static_cast<char>(character)), "\"");
  return absl::StrCat("/", RegexCharacter(character), "/");
}

class Translator {
 public:
  explicit Translator(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::string> Translate() {
    while (status_.ok() && SkipSpace()) ReadRule();
    if (status_.ok()) CheckNames();
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  struct Name {
    std::string lark;
    int first_line = 0;  // where it is used or defined first
    bool defined = false;
  };

  template <typename... Parts>
  void Fail(int line, const Parts&... parts) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", parts...)));
  }
  template <typename... Parts>
  void FailHere(const Parts&... parts) {
    Fail(line_, parts...);
  }

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(char c) {
    if (AtEnd() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // Skips spaces, newlines and comments. False: nothing follows.
  bool SkipSpace() {
    for (; !AtEnd(); ++at_) {
      if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n') ++at_;
      }
      if (Peek() == '\n') ++line_;
      if (!AtEnd() && !absl::ascii_isspace(static_cast<unsigned char>(Peek()))) return true;
    }
    return false;
  }

  absl::string_view ReadName() {
    const size_t begin = at_;
    while (!AtEnd() && IsNameCharacter(Peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Whether a rule begins here: a name and `::=`.
  bool AtRule() {
    const size_t at = at_;
    const int line = line_;
    const bool found = !ReadName().empty() && SkipSpace() && absl::StartsWith(text_.substr(at_), "::=");
    at_ = at;
    line_ = line;
    return found;
  }

  Name& NameOf(absl::string_view name) {
    const auto [it, added] = names_.try_emplace(std::string(name));
    if (!added) return it->second;
    it->second.first_line = line_;
    std::string plain = absl::AsciiStrToLower(name);
    for (char& c : plain) c = c == '-' ? '_' : c;
    it->second.lark = name == "root" ? "start" : absl::StrCat("r", names_.size(), "_", plain);
    return it->second;
  }

  void ReadRule() {
    if (!AtRule()) return FailHere("a rule must begin with a name and ::=, not with ", Quote(Peek()));
    Name& name = NameOf(ReadName());
    if (name.defined) FailHere("the rule is defined twice");
    name.defined = true;
    SkipSpace();
    at_ += 3;
    absl::StrAppend(&out_, name.lark, ": ");
    ReadAlternatives(/*depth=*/0);
    out_ += '\n';
  }

  void ReadAlternatives(int depth) {
    if (depth > kMaxDepth) return FailHere("over ", kMaxDepth, " groups within each other");
    do {
      const size_t begin = out_.size();
      ReadSequence(depth);
      if (out_.size() == begin) out_ += "\"\"";
      SkipSpace();
    } while (status_.ok() && Take('|') && (out_ += " | ", true));
  }

  void ReadSequence(int depth) {
    bool first = true;
    while (status_.ok() && SkipSpace() && Peek() != '|' && Peek() != ')' && !AtRule()) {
      if (!std::exchange(first, false)) out_ += ' ';
      ReadItem(depth);
      const std::string repetition = status_.ok() ? ReadRepetition() : "";
      out_ += repetition;
      if (!repetition.empty() && status_.ok() && absl::StrContains("*+?{", Peek()) && !AtEnd()) {
        FailHere("a repetition is repeated; put it into a group");
      }
    }
  }

  void ReadItem(int depth) {
    if (Take('"')) return ReadLiteral();
    if (Take('[')) return ReadClass();
    if (Take('.')) {
      out_ += "/(?s:.)/";
      return;
    }
    if (Take('(')) {
      out_ += '(';
      ReadAlternatives(depth + 1);
      if (status_.ok() && !Take(')')) FailHere("a group has no end");
      out_ += ')';
      return;
    }
    if (!IsNameCharacter(Peek())) return FailHere("there is no construct ", Quote(Peek()));
    out_ += NameOf(ReadName()).lark;
  }

  // "*", "+", "?", "{n}", "{n,}" or "{n,m}"; "": none.
  std::string ReadRepetition() {
    for (const char c : {'*', '+', '?'}) {
      if (Take(c)) return std::string(1, c);
    }
    if (!Take('{')) return "";
    const std::optional<int> low = ReadCount();
    std::string out = low ? absl::StrCat("{", *low) : "";
    if (low && Take(',')) {
      out += ',';
      const std::optional<int> high = ReadCount();
      if (high) absl::StrAppend(&out, *high);
      if (high && *high < *low) FailHere("{", *low, ",", *high, "} has no number in it");
    }
    if (low && Take('}')) return out + "}";
    FailHere("a repetition must be {n}, {n,} or {n,m}, with numbers up to ", kMaxRepetitions);
    return "";
  }

  std::optional<int> ReadCount() {
    while (Peek() == ' ') ++at_;
    if (!absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) return std::nullopt;
    int count = 0;
    while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) {
      count = count * 10 + (text_[at_++] - '0');
      if (count > kMaxRepetitions) return std::nullopt;
    }
    while (Peek() == ' ') ++at_;
    return count;
  }

  void ReadLiteral() {
    std::string lexemes;
    int count = 0;
    while (!Take('"')) {
      const std::optional<uint32_t> character = ReadCharacter("literal");
      if (!character) return;
      absl::StrAppend(&lexemes, count++ > 0 ? " " : "", Lexeme(*character));
    }
    if (count == 0) lexemes = "\"\"";
    absl::StrAppend(&out_, count > 1 ? "(" : "", lexemes, count > 1 ? ")" : "");
  }

  void ReadClass() {
    std::string members;
    const bool negated = Take('^');
    while (!Take(']')) {
      const std::optional<uint32_t> low = ReadCharacter("class of characters");
      if (!low) return;
      absl::StrAppend(&members, RegexCharacter(*low));
      if (Peek() != '-' || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') continue;
      ++at_;
      const std::optional<uint32_t> high = ReadCharacter("class of characters");
      if (!high) return;
      if (*high < *low) return FailHere("a class has a range from a later character to an earlier one");
      absl::StrAppend(&members, "-", RegexCharacter(*high));
    }
    if (members.empty()) return FailHere("a class of characters is empty");
    absl::StrAppend(&out_, "/[", negated ? "^" : "", members, "]/");
  }

  // The next character of a literal or a class, escapes resolved. None: an error.
  std::optional<uint32_t> ReadCharacter(absl::string_view within) {
    if (AtEnd() || Peek() == '\n') {
      FailHere("a ", within, " has no end");
      return std::nullopt;
    }
    if (Take('\\')) return ReadEscape();
    const unsigned char first = static_cast<unsigned char>(text_[at_++]);
    if (first < 0x80) return first;
    if (first < 0xC0) at_ = text_.size() + 1;
    const int rest = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    uint32_t character = first & (0x3Fu >> rest);
    for (int i = 0; i < rest; ++i) character = character << 6 | (static_cast<unsigned char>(Peek()) & 0x3F), ++at_;
    if (at_ <= text_.size() && character <= kLastCharacter) return character;
    FailHere("the text is not UTF-8");
    return std::nullopt;
  }

  std::optional<uint32_t> ReadEscape() {
    const char c = Peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return ReadHex(2);
      case 'u':
        return ReadHex(4);
      case 'U':
        return ReadHex(8);
      default:
        if (absl::StrContains("\\\"'[]-^/", c) && c != '\0') return c;
    }
    FailHere("there is no escape \\", Quote(c));
    return std::nullopt;
  }

  std::optional<uint32_t> ReadHex(int digits) {
    const absl::string_view hex = text_.substr(at_, digits);
    uint32_t character = 0;
    for (const char c : hex) {
      const int digit =
          absl::ascii_isdigit(static_cast<unsigned char>(c)) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) character = kLastCharacter + 1;
      if (character <= kLastCharacter) character = character << 4 | static_cast<uint32_t>(digit);
    }
    at_ += hex.size();
    const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
    if (hex.size() == static_cast<size_t>(digits) && character <= kLastCharacter && !surrogate) return character;
    FailHere("an escape of ", digits, " hexadecimal digits names no character");
    return std::nullopt;
  }

  static std::string Quote(char c) {
    if (c == '\0') return "the end of the text";
    return absl::ascii_isprint(static_cast<unsigned char>(c))
               ? absl::StrCat("\"", std::string(1, c), "\"")
               : absl::StrFormat("byte 0x%02x", static_cast<unsigned char>(c));
  }

  void CheckNames() {
    for (const auto& [name, entry] : names_) {
      if (!entry.defined) Fail(entry.first_line, "there is no rule ", name);
    }
    if (names_.find("root") == names_.end()) status_.Update(absl::InvalidArgumentError("there is no rule root"));
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  std::string out_;
  std::map<std::string, Name> names_;
  absl::Status status_;
};

}  // namespace

bool IsEbnf(absl::string_view grammar) { return absl::StrContains(grammar, "::="); }

absl::StatusOr<std::string> EbnfToLark(absl::string_view grammar) { return Translator(grammar).Translate(); }

}  // namespace berth
