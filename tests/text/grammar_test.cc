// Compiled grammars with tokenizers of three kinds: what the masks allow is in the language, and nothing else is.
#include "text/grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/text/grammar_test_util.h"

namespace berth {
namespace {

using nlohmann::json;
using Kind = GrammarSpec::Kind;

class GrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabularies_ = new std::vector<TestVocabulary>(TestVocabularies()); }
  static void TearDownTestSuite() { delete vocabularies_; }

  static const std::vector<TestVocabulary>& vocabularies() { return *vocabularies_; }
  static const TestVocabulary& byte_level() { return (*vocabularies_)[0]; }
  static const TestVocabulary& unigram() { return (*vocabularies_)[2]; }

  static absl::StatusOr<CompiledGrammar> Compile(const TestVocabulary& vocabulary, const GrammarSpec& spec) {
    return CompileGrammar(spec, vocabulary.vocabulary, {}, {});
  }
  static std::string ErrorOf(Kind kind, const std::string& text) {
    const auto grammar = Compile(byte_level(), {.kind = kind, .text = text});
    return grammar.ok() ? "" : std::string(grammar.status().message());
  }

  // The text that a client gets: alone if the output is a text of its own, else after another token.
  static std::string Text(const TestVocabulary& vocabulary, std::vector<int32_t> tokens, bool own_text) {
    if (own_text) return *vocabulary.tokenizer->Decode(tokens, true);
    const std::vector<int32_t> before = *vocabulary.tokenizer->Encode("a", false);
    tokens.insert(tokens.begin(), before.begin(), before.end());
    return vocabulary.tokenizer->Decode(tokens, true)->substr(1);
  }

  // Walks with every vocabulary, both at the start of a text and within one. Returns the complete texts.
  static std::vector<std::string> Walks(GrammarSpec spec, int rounds, int64_t max_tokens = 60, int end_weight = 20) {
    std::vector<std::string> texts;
    for (const TestVocabulary& vocabulary : *vocabularies_) {
      for (bool own_text : {false, true}) {
        spec.own_text = own_text;
        SCOPED_TRACE(vocabulary.name + (own_text ? ", own text: " : ": ") + spec.text);
        const auto grammar = Compile(vocabulary, spec);
        EXPECT_TRUE(grammar.ok()) << grammar.status();
        if (!grammar.ok()) continue;
        std::mt19937 random(7);
        for (int round = 0; round < rounds; ++round) {
          const Walk walk = RandomWalk(vocabulary, *grammar->start, max_tokens, &random, end_weight);
          EXPECT_TRUE(walk.status.ok()) << walk.status << " after " << Text(vocabulary, walk.tokens, own_text);
          if (walk.complete) texts.push_back(Text(vocabulary, walk.tokens, own_text));
        }
      }
    }
    EXPECT_FALSE(texts.empty()) << spec.text;
    return texts;
  }

 private:
  static std::vector<TestVocabulary>* vocabularies_;
};

std::vector<TestVocabulary>* GrammarTest::vocabularies_ = nullptr;

TEST_F(GrammarTest, EveryTokensBytesAreItsText) {
  for (const TestVocabulary* vocabulary : {&byte_level(), &unigram()}) {
    std::mt19937 random(3);
    int num_compared = 0;
    const int64_t size = vocabulary->tokenizer->vocab_size();
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> tokens;
      std::string bytes;
      for (int i = 0; i < 6; ++i) {
        const auto token = static_cast<int32_t>(random() % static_cast<uint64_t>(size));
        const std::string word = vocabulary->vocabulary->Bytes(token);
        if (word.empty() || word[0] == '\xFF') continue;
        tokens.push_back(token);
        bytes += word;
      }
      const std::string text = Text(*vocabulary, tokens, false);
      if (absl::StrContains(text, "\xEF\xBF\xBD")) continue;
      EXPECT_EQ(text, bytes);
      ++num_compared;
    }
    EXPECT_GT(num_compared, 0) << vocabulary->name;
    EXPECT_EQ(vocabulary->vocabulary->Bytes(static_cast<int32_t>(size)), "");
    EXPECT_EQ(vocabulary->vocabulary->Bytes(vocabulary->end_token)[0], '\xFF');
  }
}

TEST_F(GrammarTest, ARegexMatchesTheWholeText) {
  for (const char* pattern : {"[a-z]{3}", "a|ab|abc", "(ab)*c?", "\\d{1,3}\\.\\d{2}", "[^x-z\\d]{2,4}", "\"[a-c]*\"",
                              "the name is (a|b)", "( a){1,3}", "a/b/[c-e]+", "-?(0|[1-9][0-9]*)"}) {
    const std::regex regex(pattern);
    for (const std::string& text : Walks({.kind = Kind::kRegex, .text = pattern}, 12)) {
      if (std::any_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; })) continue;  // no UTF-8 there
      EXPECT_TRUE(std::regex_match(text, regex)) << pattern << ": " << text;
    }
  }
}

TEST_F(GrammarTest, AChoiceIsOneOfThem) {
  GrammarSpec spec = {.kind = Kind::kChoice,
                      .choices = {"true", "false", "the name", "the names", "\u00e9\u00e8", "\u00e9", " a"}};
  std::set<std::string> seen;
  for (const std::string& text : Walks(spec, 30, 60, 1)) {
    EXPECT_NE(std::find(spec.choices.begin(), spec.choices.end(), text), spec.choices.end()) << text;
    seen.insert(text);
  }
  EXPECT_EQ(seen, std::set<std::string>(spec.choices.begin(), spec.choices.end()));
}

TEST_F(GrammarTest, JsonIsJson) {
  for (auto whitespace :
       {GrammarSpec::Whitespace::kFlexible, GrammarSpec::Whitespace::kCompact, GrammarSpec::Whitespace::kSpaced}) {
    for (const std::string& text : Walks({.kind = Kind::kJsonObject, .whitespace = whitespace}, 10, 80)) {
      // A number may be over a double's range, which this parser takes for an error.
      const json value = json::parse(std::regex_replace(text, std::regex("[eE][+-]?[0-9]+"), "e1"), nullptr, false);
      ASSERT_TRUE(value.is_object()) << text;
    }
  }
}

constexpr char kPerson[] = R"({"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
  "tags": {"type": "array", "items": {"enum": ["a", "ab", true, null]}, "maxItems": 3},
  "kind": {"$ref": "#/$defs/kind"}}, "required": ["name", "age", "kind"], "additionalProperties": false,
  "$defs": {"kind": {"anyOf": [{"const": "the name"}, {"type": "null"}]}}})";

TEST_F(GrammarTest, AnObjectHasItsSchemasProperties) {
  for (const std::string& text : Walks({.kind = Kind::kJsonSchema, .text = kPerson}, 12, 200)) {
    const json value = json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_TRUE(value.at("name").is_string());
    EXPECT_TRUE(value.at("age").is_number_integer() && value.at("age") >= 0 && value.at("age") <= 120) << text;
    EXPECT_TRUE(value.at("kind") == "the name" || value.at("kind").is_null());
    for (const auto& item : value.items()) {
      EXPECT_TRUE(std::set<std::string>({"name", "age", "tags", "kind"}).count(item.key())) << text;
    }
  }
}

TEST_F(GrammarTest, WhitespaceIsAsAsked) {
  const char* schema = R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"const": [1, 2]}},
                           "required": ["a", "b"], "additionalProperties": false})";
  using Whitespace = GrammarSpec::Whitespace;
  for (const std::string& text :
       Walks({.kind = Kind::kJsonSchema, .text = schema, .whitespace = Whitespace::kCompact}, 2)) {
    EXPECT_EQ(text, R"({"a":null,"b":[1,2]})");
  }
  for (const std::string& text :
       Walks({.kind = Kind::kJsonSchema, .text = schema, .whitespace = Whitespace::kSpaced}, 2)) {
    EXPECT_EQ(text, R"({"a": null, "b": [1, 2]})");
  }
}

TEST_F(GrammarTest, LarkRulesAreFollowed) {
  const char* lark = "start: \"[\" item (\",\" item)* \"]\"\nitem: NAME | start\nNAME: /[a-c]{1,3}/\n%ignore / /";
  for (const std::string& text : Walks({.kind = Kind::kLark, .text = lark}, 12, 120, 100)) {
    int depth = 0;
    for (char c : text) depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    EXPECT_EQ(depth, 0) << text;
  }
}

TEST_F(GrammarTest, ASchemaInALarkGrammarMayHaveSeveralLines) {
  const char* lark = "start: %json {\n\"const\": 1\n} TAIL\n  | \"x\"\nTAIL: \"!\"";
  for (const std::string& text : Walks({.kind = Kind::kLark, .text = lark}, 4))
    EXPECT_TRUE(text == "1!" || text == "x");
  const std::string error = ErrorOf(Kind::kLark, "start: %json {\n\n}\n!");
  EXPECT_TRUE(absl::StartsWith(error, "4(2): lexer error")) << error;
}

TEST_F(GrammarTest, ControlTokensComeByTheirNameAlone) {
  const TestVocabulary& vocabulary = byte_level();
  const int32_t control = vocabulary.tokenizer->TokenId("<|im_start|>");
  const auto grammar = Compile(vocabulary, {.kind = Kind::kLark, .text = "start: \"ab\" <|im_start|> /[a-z]+/"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::mt19937 random(1);
  const Walk walk = RandomWalk(vocabulary, *grammar->start, 30, &random);
  ASSERT_TRUE(walk.status.ok()) << walk.status;
  EXPECT_EQ(std::count(walk.tokens.begin(), walk.tokens.end(), control), 1);
  // As text it is spelled out, and is not the token.
  for (const char* pattern : {"<\\|im_start\\|>", "[^]*"}) {
    const auto text = Compile(vocabulary, {.kind = Kind::kRegex, .text = pattern});
    ASSERT_TRUE(text.ok()) << text.status();
    const Walk spelled = RandomWalk(vocabulary, *text->start, 30, &random);
    ASSERT_TRUE(spelled.status.ok()) << spelled.status;
    EXPECT_EQ(std::count(spelled.tokens.begin(), spelled.tokens.end(), control), 0);
  }
}

constexpr char kTag[] = R"({"type": "structural_tag", "triggers": ["<tool="], "structures": [
  {"begin": "<tool=a>", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
   "additionalProperties": false}, "end": "</tool>"},
  {"begin": "<tool=b>", "schema": {"type": "boolean"}, "end": "</tool>"}]})";

void ExpectTagsAreRight(const std::string& text) {
  static const std::regex regex(R"(<tool=a>([^<]*)</tool>|<tool=b>\s*(true|false)\s*</tool>)");
  size_t count = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it, ++count) {
    if (!(*it)[1].matched) continue;
    const json value = json::parse((*it)[1].str(), nullptr, false);
    EXPECT_TRUE(value.is_object() && value.value("x", json()).is_number_integer()) << text;
  }
  size_t triggers = 0;
  for (size_t at = 0; (at = text.find("<tool=", at)) != std::string::npos; ++at) ++triggers;
  EXPECT_EQ(triggers, count) << text;
}

TEST_F(GrammarTest, TextMayEnterTaggedRegions) {
  for (const std::string& text : Walks({.kind = Kind::kStructuralTag, .text = kTag}, 20, 60, 30))
    ExpectTagsAreRight(text);
  // A region that is entered has to be right.
  const TestVocabulary& vocabulary = byte_level();
  const auto grammar = Compile(vocabulary, {.kind = Kind::kStructuralTag, .text = kTag});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::mt19937 random(5);
  int complete = 0;
  for (int round = 0; round < 30; ++round) {
    auto constraint = grammar->start->Clone();
    const std::vector<int32_t> begin = *vocabulary.tokenizer->Encode("text < and <tool=", false);
    ASSERT_EQ(constraint->CountAllowed(begin), static_cast<int64_t>(begin.size()));
    for (int32_t token : begin) ASSERT_TRUE(constraint->Accept(token).ok());
    EXPECT_FALSE(HasBit(MaskOf(constraint.get(), vocabulary.vocabulary->vocab_size()), vocabulary.end_token));
    Walk walk = RandomWalk(vocabulary, *constraint, 60, &random, 1000);
    ASSERT_TRUE(walk.status.ok()) << walk.status;
    if (!walk.complete) continue;
    ++complete;
    walk.tokens.insert(walk.tokens.begin(), begin.begin(), begin.end());
    ExpectTagsAreRight(*vocabulary.tokenizer->Decode(walk.tokens, true));
  }
  EXPECT_GT(complete, 10);
}

TEST_F(GrammarTest, RefusesStructuralTagsThatItCannotFollow) {
  const auto error = [](const char* text) { return ErrorOf(Kind::kStructuralTag, text); };
  EXPECT_NE(error(R"({"type": "structural_tag", "format": {}})").find("\"structures\" and \"triggers\""),
            std::string::npos);
  EXPECT_NE(error(R"({"type": "structural_tag", "structures": [], "triggers": ["a"]})").find("/structures"),
            std::string::npos);
  EXPECT_NE(
      error(R"({"type": "structural_tag", "structures": [{"begin": "b", "schema": {}, "end": ""}], "triggers": ["a"]})")
          .find("/structures/0/begin"),
      std::string::npos);
  EXPECT_NE(
      error(
          R"({"type": "structural_tag", "structures": [{"begin": "ab", "schema": {"type": 1}, "end": ""}], "triggers": ["a"]})")
          .find("/structures/0/schema/type"),
      std::string::npos);
  EXPECT_NE(
      error(
          R"({"type": "structural_tag", "structures": [{"begin": "ab", "schema": {}, "end": ""}], "triggers": ["a", "xa"]})")
          .find("/triggers/1"),
      std::string::npos);
}

TEST_F(GrammarTest, AConstraintBeginsAfterAText) {
  for (const std::string& text : Walks({.kind = Kind::kRegex, .text = "\\d{2}", .begin_text = "a"}, 20, 400)) {
    EXPECT_TRUE(std::regex_match(text.substr(text.find('a') + 1), std::regex("\\d{2}"))) << text;
  }
  const TestVocabulary& vocabulary = byte_level();
  const auto grammar = Compile(vocabulary, {.kind = Kind::kRegex, .text = "\\d{2}", .begin_text = "<go>"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  auto constraint = grammar->start->Clone();
  const std::vector<int32_t> before = *vocabulary.tokenizer->Encode("I think <go>", false);
  for (int32_t token : before) {
    EXPECT_FALSE(HasBit(MaskOf(constraint.get(), vocabulary.vocabulary->vocab_size()), vocabulary.end_token));
    ASSERT_EQ(constraint->CountAllowed({&token, 1}), 1);
    ASSERT_TRUE(constraint->Accept(token).ok());
  }
  std::mt19937 random(2);
  const Walk walk = RandomWalk(vocabulary, *constraint, 10, &random);
  EXPECT_TRUE(walk.complete);
  EXPECT_TRUE(std::regex_match(*vocabulary.tokenizer->Decode(walk.tokens, true), std::regex("\\d{2}")));
}

TEST_F(GrammarTest, AConstraintBeginsAfterAToken) {
  const TestVocabulary& vocabulary = byte_level();
  const int32_t begin = vocabulary.tokenizer->TokenId("<|im_start|>");
  for (const GrammarSpec& spec : {GrammarSpec{.kind = Kind::kRegex, .text = "\\d{2}", .begin_token = begin},
                                  GrammarSpec{.kind = Kind::kRegex, .text = "\\d{2}", .begin_text = "<|im_start|>"}}) {
    const auto grammar = Compile(vocabulary, spec);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    auto constraint = grammar->start->Clone();
    const int64_t size = vocabulary.vocabulary->vocab_size();
    for (int round = 0; round < 3; ++round) {
      const std::vector<uint32_t> mask = MaskOf(constraint.get(), size);
      EXPECT_FALSE(HasBit(mask, vocabulary.end_token));
      EXPECT_EQ(BitsOf(mask).size(), static_cast<size_t>(vocabulary.tokenizer->vocab_size() - 1));
      ASSERT_TRUE(constraint->Accept(100 + round).ok());
    }
    const std::vector<int32_t> drafts = {begin, vocabulary.tokenizer->TokenId("1")};
    EXPECT_EQ(constraint->CountAllowed(drafts), 2);
    EXPECT_EQ(BitsOf(MaskOf(constraint.get(), size)).size(),
              static_cast<size_t>(vocabulary.tokenizer->vocab_size() - 1));
    ASSERT_TRUE(constraint->Accept(begin).ok());
    std::mt19937 random(2);
    const Walk walk = RandomWalk(vocabulary, *constraint, 10, &random);
    EXPECT_TRUE(walk.complete);
    EXPECT_TRUE(std::regex_match(*vocabulary.tokenizer->Decode(walk.tokens, true), std::regex("\\d{2}")));
  }
  EXPECT_NE(Compile(vocabulary, {.kind = Kind::kJsonObject, .begin_token = vocabulary.end_token}).status().message(),
            "");
}

TEST_F(GrammarTest, ForcedTextIsTheTokenizersOwnTokens) {
  const TestVocabulary& vocabulary = byte_level();
  const std::string text = R"({"name": "a long text that the schema asks for, with 123 numbers"})";
  const std::string schema = json({{"const", json::parse(text)}}).dump();
  const auto grammar =
      Compile(vocabulary, {.kind = Kind::kJsonSchema, .text = schema, .whitespace = GrammarSpec::Whitespace::kSpaced});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::vector<int32_t> forced;
  auto constraint = grammar->start->Clone();
  ASSERT_TRUE(constraint->AppendForced(1000, &forced).ok());
  EXPECT_EQ(forced, *vocabulary.tokenizer->Encode(text, false));
  forced.clear();
  ASSERT_TRUE(constraint->AppendForced(3, &forced).ok());
  EXPECT_EQ(forced.size(), 3u);
}

// Regular expressions at random, whose states often come again.
std::string RandomPattern(std::mt19937* random, int depth) {
  const auto any = [&](std::initializer_list<const char*> of) { return *(of.begin() + (*random)() % of.size()); };
  if (depth == 0) return any({"a", "[a-c]", "name", "\\d", " ", "[^x]", "\u00e9", ".", "true"});
  const std::string inner = RandomPattern(random, depth - 1);
  switch ((*random)() % 4) {
    case 0:
      return absl::StrCat(inner, RandomPattern(random, depth - 1));
    case 1:
      return absl::StrCat("(", inner, "|", RandomPattern(random, depth - 1), ")");
    case 2:
      return absl::StrCat("(", inner, ")", any({"*", "+", "?"}));
    default:
      return absl::StrCat("(", inner, "){", any({"1,3", "0,12", "2,", "40"}), "}");
  }
}

// Walks at random. All rows have the same masks, and so at the places of drafts. Returns the masks compared.
int64_t CompareRows(const TestVocabulary& vocabulary, const std::vector<CompiledGrammar>& same, std::mt19937* random) {
  const int64_t size = vocabulary.vocabulary->vocab_size();
  std::vector<std::unique_ptr<TokenConstraint>> rows;
  for (const CompiledGrammar& each : same) rows.push_back(each.start->Clone());
  for (int64_t place = 0; place < 20; ++place) {
    const std::vector<uint32_t> mask = MaskOf(rows[0].get(), size);
    for (const auto& row : rows) EXPECT_EQ(MaskOf(row.get(), size), mask);
    const std::vector<int32_t> allowed = BitsOf(mask);
    const int32_t token = allowed.empty() ? vocabulary.end_token : allowed[(*random)() % allowed.size()];
    if (token == vocabulary.end_token) return place;
    std::vector<uint32_t> first;
    for (const auto& row : rows) {
      std::vector<uint32_t> masks(2 * mask.size());
      if (place % 3 == 0 && row->FillMasks({&token, 1}, absl::MakeSpan(masks)).ok()) {
        if (first.empty()) first = masks;
        EXPECT_EQ(masks, first);
      }
    }
    for (const auto& row : rows) EXPECT_TRUE(row->Accept(token).ok());
  }
  return 20;
}

// Kept masks are those that would be computed: with all kept, with none, and with most dropped again.
TEST_F(GrammarTest, SharedMasksAreThoseOfEachRowAlone) {
  std::vector<GrammarSpec> specs = {
      {.kind = Kind::kRegex, .text = "([a-z]{1,12} ){400}"},
      {.kind = Kind::kRegex, .text = "([a-z]{3,12} ){5,40}[0-9]{4}"},
      {.kind = Kind::kChoice, .choices = {"abc", "abcabc", "name the name", " a"}},
  };
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) specs.push_back({.kind = Kind::kRegex, .text = RandomPattern(&random, 1 + i % 4)});
  int64_t num_masks = 0;
  for (const TestVocabulary& vocabulary : vocabularies()) {
    const int64_t size = vocabulary.vocabulary->vocab_size();
    std::vector<std::shared_ptr<const GrammarVocabulary>> all = {vocabulary.vocabulary};
    for (int64_t bytes : {int64_t{0}, MaskWords(size) * 4 * 6}) {
      all.push_back(*GrammarVocabulary::Create(vocabulary.tokenizer.get(), size, {vocabulary.end_token}, bytes));
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      GrammarSpec spec = specs[i];
      spec.own_text = i % 2 == 0;
      if (i % 7 == 6) spec.begin_text = "b";
      SCOPED_TRACE(absl::StrCat(vocabulary.name, " ", spec.text));
      std::vector<CompiledGrammar> same;
      for (const auto& one : all) {
        if (auto grammar = CompileGrammar(spec, one, {}, {}); grammar.ok()) same.push_back(*std::move(grammar));
      }
      for (int walk = 0; walk < 4 && !same.empty(); ++walk) num_masks += CompareRows(vocabulary, same, &random);
    }
  }
  EXPECT_GT(num_masks, 2000);
}

TEST_F(GrammarTest, AKeyHasOneSpelling) {
  const TestVocabulary& vocabulary = byte_level();
  const auto grammar = Compile(vocabulary, {.kind = Kind::kJsonSchema, .text = R"({"type": "object",
      "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const char* text : {R"({"\u0061":)", R"({"a": 1)"}) {
    const std::vector<int32_t> tokens = *vocabulary.tokenizer->Encode(text, false);
    EXPECT_LT(grammar->start->Clone()->CountAllowed(tokens), static_cast<int64_t>(tokens.size())) << text;
  }
}

TEST_F(GrammarTest, RefusesBytesThatNoTokenSpells) {
  for (const GrammarSpec& spec :
       {GrammarSpec{.kind = Kind::kChoice, .choices = {"a", "a\x01"}},
        GrammarSpec{.kind = Kind::kRegex, .text = "[a-z]+\\x01"},
        GrammarSpec{.kind = Kind::kJsonSchema, .text = R"({"type": "object", "required": ["a\u007f"]})"}}) {
    const auto grammar = Compile(unigram(), spec);
    ASSERT_FALSE(grammar.ok());
    EXPECT_TRUE(absl::StrContains(grammar.status().message(), "byte 0x")) << grammar.status();
  }
  // Not needed by every output: a dead end where it comes.
  const auto grammar = Compile(unigram(), {.kind = Kind::kLark, .text = "start: \"a\" | \"b\\u0001\""});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  auto constraint = grammar->start->Clone();
  const int32_t b = unigram().tokenizer->TokenId("b");
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(unigram().vocabulary->vocab_size())));
  ASSERT_TRUE(constraint->Accept(b).ok());
  const absl::Status status = constraint->FillMasks({}, absl::MakeSpan(mask));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(GrammarTest, WhatMayOnlyEndIsCompleteUnlessMoreBytesMayFollowThatNoTokenSpells) {
  for (const TestVocabulary& vocabulary : vocabularies()) {
    SCOPED_TRACE(vocabulary.name);
    const auto grammar = Compile(vocabulary, {.kind = Kind::kRegex, .text = "a~?", .own_text = false});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const std::unique_ptr<TokenConstraint> constraint = grammar->start->Clone();
    EXPECT_FALSE(constraint->IsComplete());
    const int64_t vocab_size = vocabulary.vocabulary->vocab_size();
    for (int32_t token : BitsOf(MaskOf(constraint.get(), vocab_size))) {
      if (vocabulary.vocabulary->Bytes(token) != "a") continue;
      ASSERT_TRUE(constraint->Accept(token).ok());
      break;
    }
    const std::vector<int32_t> end = {vocabulary.end_token};
    EXPECT_EQ(BitsOf(MaskOf(constraint.get(), vocab_size)) == end, !vocabulary.spells_all_bytes);
    EXPECT_FALSE(constraint->IsComplete());

    const auto empty = Compile(vocabulary, {.kind = Kind::kRegex, .text = "", .own_text = false});
    ASSERT_TRUE(empty.ok()) << empty.status();
    EXPECT_EQ(BitsOf(MaskOf(empty->start->Clone().get(), vocab_size)), end);
    EXPECT_TRUE(empty->start->Clone()->IsComplete());
  }
}

TEST_F(GrammarTest, AnErrorAtADraftsPlaceLeavesTheRow) {
  const auto grammar = Compile(unigram(), {.kind = Kind::kLark, .text = "start: \"a\" | \"b\\u0001\""});
  auto constraint = grammar->start->Clone();
  const std::vector<uint32_t> before = MaskOf(constraint.get(), unigram().vocabulary->vocab_size());
  const int32_t b = unigram().tokenizer->TokenId("b");
  std::vector<uint32_t> masks(2 * static_cast<size_t>(MaskWords(unigram().vocabulary->vocab_size())));
  EXPECT_FALSE(constraint->FillMasks({&b, 1}, absl::MakeSpan(masks)).ok());
  EXPECT_EQ(MaskOf(constraint.get(), unigram().vocabulary->vocab_size()), before);
}

TEST_F(GrammarTest, RefusesSizesOverTheLimits) {
  const GrammarSpec spec = {.kind = Kind::kJsonSchema, .text = kPerson};
  EXPECT_EQ(CompileGrammar(spec, byte_level().vocabulary, {.max_text_bytes = 10}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const GrammarLimits& limits : {GrammarLimits{.max_grammar_size = 10}, GrammarLimits{.initial_lexer_fuel = 10}}) {
    const auto grammar = CompileGrammar(spec, byte_level().vocabulary, limits, {});
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument)
        << limits.max_grammar_size << " " << limits.initial_lexer_fuel;
  }
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(CompileGrammar(spec, byte_level().vocabulary, {}, stop.get_token()).status().code(),
            absl::StatusCode::kCancelled);
}

// Clones are independent, on threads of their own too.
TEST_F(GrammarTest, ClonesRunOnSeveralThreads) {
  const auto grammar = Compile(byte_level(), {.kind = Kind::kJsonSchema, .text = kPerson});
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&grammar, seed] {
      std::mt19937 random(seed);
      EXPECT_TRUE(RandomWalk(byte_level(), *grammar->start, 60, &random).status.ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace berth
