// What a schema, a regex or a Lark grammar is refused for, and what a schema is warned of.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/text/grammar_test_util.h"
#include "text/grammar.h"

namespace berth {
namespace {

using Kind = GrammarSpec::Kind;

class GrammarRefusalsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabularies_ = new std::vector<TestVocabulary>(TestVocabularies()); }
  static void TearDownTestSuite() { delete vocabularies_; }

  static absl::StatusOr<CompiledGrammar> Compile(const GrammarSpec& spec) {
    return CompileGrammar(spec, vocabularies_->front().vocabulary, {}, {});
  }
  static std::string ErrorOf(Kind kind, const std::string& text) {
    const auto grammar = Compile({.kind = kind, .text = text});
    return grammar.ok() ? "" : std::string(grammar.status().message());
  }

 private:
  static std::vector<TestVocabulary>* vocabularies_;
};

std::vector<TestVocabulary>* GrammarRefusalsTest::vocabularies_ = nullptr;

TEST_F(GrammarRefusalsTest, RefusesSchemaKeywordsByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {"uniqueItems": true}})", "/not/uniqueItems"},
      {R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]})", "/items"},
      {R"({"properties": {"a/b": {"not": {"uniqueItems": true}}}})", "/properties/a~1b/not/uniqueItems"},
      {R"({"type": "text"})", "/type"},
      {R"({"$ref": "#/$defs/none"})", "points to nothing"},
      {R"({"$ref": "http://example.com"})", "/$ref"},
      {R"x({"pattern": "a(?=b)"})x", "lookahead"},
      {R"({"pattern": "[a"})", "/pattern"},
      {R"({"minLength": -1})", "/minLength"},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "exclusiveMinimum": true})", "/exclusiveMinimum"},
      {R"({"multipleOf": 0})", "/multipleOf"},
      {R"({"$schema": "http://json-schema.org/draft-03/schema#"})", "draft-04 is the oldest"},
      {R"({"$id": "http://a.org/b", "$ref": "c"})", "nothing is fetched"},
      {R"({"$ref": "#x"})", "names no anchor"},
      {R"({"enum": []})", "/enum"},
      {R"({"const": 18446744073709551616})", "64 bits"},
      {R"({"minimum": 1e38})", "38 digits"},
      {R"({"multipleOf": 9007199254740993})", "2^53"},
      {R"({"type": "object", "minProperties": 3, "propertyNames": {"maxLength": 3}})", "/minProperties"},
      {R"({"a": 1, "a": 2})", "comes twice at line 1 column"},
      {"{\"type\":\n \"string\",}", "line 2 column"},
      {R"(false)", "/: no value fits the schema"},
  };
  for (const auto& [schema, part] : cases) {
    const std::string error = ErrorOf(Kind::kJsonSchema, schema);
    EXPECT_TRUE(absl::StrContains(error, part)) << schema << ": " << error;
  }
  EXPECT_TRUE(absl::StrContains(ErrorOf(Kind::kLark, "start: \"a\"\n  %json {\"type\": 1}"), "line 2 column 3"));
  EXPECT_TRUE(absl::StrContains(ErrorOf(Kind::kLark, "start: a\na: (\"x\""), "2(8)"));
  EXPECT_NE(ErrorOf(Kind::kLark, "start: \"a\n"), "");
  EXPECT_TRUE(absl::StrContains(ErrorOf(Kind::kLark, "%llguidance {\"allow_invalid_utf8\": true}\nstart: /a/"),
                                "allow_invalid_utf8"));
  EXPECT_NE(ErrorOf(Kind::kRegex, "(a"), "");
  EXPECT_NE(ErrorOf(Kind::kRegex, "\\ba"), "");
  EXPECT_NE(ErrorOf(Kind::kChoice, ""), "");
  EXPECT_TRUE(absl::StrContains(ErrorOf(Kind::kLark, "start: a\na[max_tokens=3]: /x*/"), "max_tokens"));
  EXPECT_TRUE(absl::StrContains(ErrorOf(Kind::kLark, "start: a\na[stop=\"b\"]: /x*/"), "stop"));
}

// What a schema's draft does not know is a warning, or an error if it is to be.
TEST_F(GrammarRefusalsTest, NamesWhatConstrainsNothing) {
  const std::string d4 = R"("$schema": "http://json-schema.org/draft-04/schema#")";
  const std::string d7 = R"("$schema": "http://json-schema.org/draft-07/schema#")";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"tpye": "string"})", "/tpye: ignored: unknown keyword; type may be meant"},
      {R"({"items": {"maxlength": 3}})", "/items/maxlength: ignored: unknown keyword; maxLength may be meant"},
      {R"({"x-guidance": {}})", "/x-guidance: ignored: unknown keyword"},
      {R"({"format": "int32"})", "/format: ignored: the format \"int32\" is not checked"},
      {"{" + d4 + R"(, "const": 1})", "/const: ignored: a keyword since draft-06; the schema is of draft-04"},
      {"{" + d7 + R"(, "$ref": "#/definitions/a", "minimum": 1, "definitions": {"a": true}})",
       "/minimum: ignored: draft-07 passes over keywords beside $ref"},
      {R"({"a\nb": 1})", "/a b: ignored: unknown keyword"},
      {R"({"$schema": "http://example.org/mine"})", "/$schema: ignored: not a draft that Berth knows"},
  };
  for (const auto& [schema, warning] : cases) {
    const GrammarSpec spec = {.kind = Kind::kJsonSchema, .text = schema};
    const auto grammar = Compile(spec);
    ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.status();
    ASSERT_EQ(grammar->warnings.size(), 1u) << schema;
    EXPECT_TRUE(absl::StartsWith(grammar->warnings[0], warning)) << grammar->warnings[0];
    GrammarSpec strict = spec;
    strict.refuse_unknown = true;
    const auto refused = Compile(strict);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << schema;
  }
  const auto silent = Compile({.kind = Kind::kJsonSchema, .text = R"({"title": "t", "default": 1})"});
  ASSERT_TRUE(silent.ok());
  EXPECT_TRUE(silent->warnings.empty());
  // As many as a reader can use.
  std::string many;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&many, i == 0 ? "" : ",", "\"k", i, "\":1");
  const auto listed = Compile({.kind = Kind::kJsonSchema, .text = absl::StrCat("{", many, "}")});
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed->warnings.size(), 21u);
}

}  // namespace
}  // namespace berth
