// Masks within texts, where most tokens are known at once (text/crate/src/plain_text.rs): those of a walk over all.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/text/grammar_test_util.h"
#include "tests/text/test_tokenizers.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace berth {
namespace {

// Around each edge: the lengths 8 and 16, the separators that `.` does not match, and characters of 1 to 4 bytes.
const std::vector<std::string>& Words() {
  static const auto* words = new std::vector<std::string>{"aaaaaaaa",
                                                          "aaaaaaaaa",
                                                          "aaaaaaaaaaaaaaaa",
                                                          "aaaaaaaaaaaaaaaaa",
                                                          "        ",
                                                          "                 ",
                                                          "2024-01",
                                                          "12",
                                                          "a1",
                                                          " the",
                                                          "a.b",
                                                          "x@y",
                                                          ".",
                                                          "@",
                                                          "-",
                                                          "_x",
                                                          "a-b",
                                                          "\u00e9t\u00e9",
                                                          "\u00a0",
                                                          "\u2027",
                                                          "\u2028",
                                                          "\u2029",
                                                          "\u202a",
                                                          "a\u2028b",
                                                          "\u65e5\u672c",
                                                          "\ud7ff",
                                                          "\ue000",
                                                          "\uffff",
                                                          "\U00010000",
                                                          "\U0010ffff",
                                                          "a\U0001f600",
                                                          "\u0080",
                                                          "\u07ff",
                                                          "\u0800",
                                                          "\x7f",
                                                          "\\n",
                                                          "\\",
                                                          "\"",
                                                          "a\"",
                                                          "\", \"",
                                                          "\n",
                                                          "a\nb",
                                                          "/",
                                                          "a/b",
                                                          "Z",
                                                          "z9",
                                                          "\t"};
  return *words;
}

struct Vocabulary {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  int32_t end_token;
};

Vocabulary MakeVocabulary() {
  const TestTokenizer source = SentencePieceTokenizer(Words(), ByteTokens::kFirst);
  Vocabulary out = {.tokenizer = *Tokenizer::Parse(source.json), .end_token = source.end_token};
  out.vocabulary = *GrammarVocabulary::Create(out.tokenizer.get(), out.tokenizer->vocab_size(), {out.end_token});
  return out;
}

// Walks at random after `begin`, and compares each token's bit with what its bytes do alone. Returns the bits set.
int64_t CompareTokens(const Vocabulary& vocabulary, const TokenConstraint& start, const std::string& begin,
                      std::mt19937* random) {
  const int64_t size = vocabulary.vocabulary->vocab_size();
  const std::unique_ptr<TokenConstraint> place = start.Clone();
  for (const char byte : begin) {
    for (int32_t token = 0; token < static_cast<int32_t>(size); ++token) {
      if (vocabulary.vocabulary->Bytes(token) != std::string(1, byte)) continue;
      EXPECT_TRUE(place->Accept(token).ok()) << byte;
      break;
    }
  }
  int64_t num_set = 0;
  for (int step = 0; step < 12; ++step) {
    const std::unique_ptr<TokenConstraint> unmasked = place->Clone();  // its CountAllowed reads the tokens' bytes
    const std::vector<uint32_t> mask = MaskOf(place.get(), size);
    if (mask.empty()) return num_set;
    for (int32_t token = 0; token < static_cast<int32_t>(size); ++token) {
      EXPECT_EQ(unmasked->CountAllowed({&token, 1}) == 1, HasBit(mask, token))
          << "step " << step << ", token " << token << " " << vocabulary.vocabulary->Bytes(token);
    }
    const std::vector<int32_t> allowed = BitsOf(mask);
    num_set += static_cast<int64_t>(allowed.size());
    const int32_t token = allowed[(*random)() % allowed.size()];
    if (token == vocabulary.end_token || !place->Accept(token).ok()) return num_set;
  }
  return num_set;
}

TEST(PlainTextTest, MasksAreThoseOfEachTokenAlone) {
  const Vocabulary vocabulary = MakeVocabulary();
  std::mt19937 random(7);
  for (const char* value : {
           R"("pattern": "[0-9]{4}-[0-9]{2}")",
           R"("pattern": "^.*@.*\\..*$")",
           R"("pattern": "^(.*)$")",
           R"("pattern": "^.+$", "maxLength": 30)",
           R"("pattern": "a", "maxLength": 17)",
           R"("pattern": "^[^/]+$", "maxLength": 16)",
           R"("pattern": "^[^/]+(/[^/]+)*$")",
           R"("pattern": "^[A-Za-z0-9_]{3,20}$")",
           R"("pattern": "^[\\w-]+$")",
           R"("pattern": "^[a-z ]+$")",
           R"("pattern": "^\\S+$")",
           R"("pattern": "^[ -~]*$")",
           R"("pattern": "^[ -~\\u0080-\\u07ff]*$")",
           R"("pattern": "^[ -~\\u0080-\\uffff]*$")",
           R"("pattern": "^[^\\u2028]*$")",
           R"("pattern": "^[\\u0080-\\uffff]*$")",
           R"("pattern": "^([^a]|aa)*$")",
           R"("pattern": "^(?!abc).*$")",
           R"("not": {"pattern": "aaaaaaaaaaaaaaaaaa"})",
           R"("maxLength": 9)",
           R"("format": "email")",
           R"("format": "uri")",
           R"("enum": ["aaaaaaaaaaaaaaaa", "a.b"])",
       }) {
    SCOPED_TRACE(value);
    const std::string schema =
        std::string(R"({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", )") + value + "}}}";
    const auto grammar =
        CompileGrammar({.kind = GrammarSpec::Kind::kJsonSchema, .text = schema}, vocabulary.vocabulary, {}, {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    int64_t num_set = 0;
    for (int walk = 0; walk < 6; ++walk) num_set += CompareTokens(vocabulary, *grammar->start, R"({"a": ")", &random);
    EXPECT_GT(num_set, 100);
  }
}

TEST(PlainTextTest, ARegexsMasksAreThoseOfEachTokenAlone) {
  const Vocabulary vocabulary = MakeVocabulary();
  std::mt19937 random(7);
  for (const char* pattern :
       {".*", "[^a]*a.{0,20}", "(.*-)*", ".{16}", ".{8,15}", "[^\\n]*", "(.|\\n)*", "\\w{1,17}x"}) {
    SCOPED_TRACE(pattern);
    const auto grammar =
        CompileGrammar({.kind = GrammarSpec::Kind::kRegex, .text = pattern}, vocabulary.vocabulary, {}, {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (int walk = 0; walk < 6; ++walk) CompareTokens(vocabulary, *grammar->start, "", &random);
  }
}

}  // namespace
}  // namespace berth
