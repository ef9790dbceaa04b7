// A schema that is all of an output is built by Berth (text/crate/src/rules.rs). Where a space comes before it,
// llguidance reads the same rules. After the space, both must allow the same tokens everywhere.
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/text/grammar_test_util.h"
#include "text/grammar.h"

namespace berth {
namespace {

// Together they have options, conditions on parameters, repetitions, patterns and what they exclude.
constexpr const char* kSchemas[] = {
    R"({})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"enum": ["x", "é\n", 1.5]}},
        "required": ["b"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}, "minProperties": 1,
        "maxProperties": 2, "patternProperties": {"^d": {"type": "integer"}}, "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "null"}, "b": true}, "dependentRequired": {"a": ["b"]},
        "oneOf": [{"required": ["a"]}, {"required": ["c"]}]})",
    R"({"type": "object", "minProperties": 2, "additionalProperties": {"type": "null"}})",
    R"({"type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "maxProperties": 3})",
    R"({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 41})",
    R"({"type": "array", "items": {"type": "integer"}, "minItems": 17})",
    R"({"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"const": [1, {"k": "v"}]},
        "minItems": 1})",
    R"({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 3, "items": {"enum": [0, 1, 2]}})",
    R"({"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", {"c": null}, 4]}, "minItems": 2})",
    R"({"type": "string", "pattern": "^a[b/\"]*c?$", "minLength": 2, "not": {"enum": ["ab", "ac"]}})",
    R"({"type": "string", "not": {"pattern": "x"}, "maxLength": 6})",
    R"({"type": "string", "format": "date-time"})",
    R"({"type": "number", "exclusiveMinimum": -2.5, "maximum": 1200, "not": {"type": "integer"}})",
    R"({"type": "integer", "minimum": -100, "maximum": 99})",
    R"({"type": "number", "multipleOf": 0.25})",
    R"({"$defs": {"t": {"type": "object", "properties": {"n": {"type": "integer"}, "more": {"type": "array", "items":
        {"$ref": "#/$defs/t"}}}, "required": ["n"], "additionalProperties": false}}, "$ref": "#/$defs/t"})",
    R"({"if": {"required": ["k"], "properties": {"k": {"const": 1}}}, "then": {"required": ["v"]}, "type": "object"})",
};

// And those with 64 values or names: as many as a parameter can remember.
std::vector<std::string> Schemas() {
  std::vector<std::string> all(std::begin(kSchemas), std::end(kSchemas));
  std::vector<std::string> values;
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) {
    values.push_back(absl::StrCat(i));
    names.push_back(absl::StrCat("\"", i, "\": {\"type\": \"null\"}"));
  }
  all.push_back(absl::StrCat(R"({"type": "array", "uniqueItems": true, "minItems": 64, "items": {"enum": [)",
                             absl::StrJoin(values, ", "), "]}}"));
  all.push_back(
      absl::StrCat(R"({"type": "object", "minProperties": 64, "additionalProperties": false, "properties": {)",
                   absl::StrJoin(names, ", "), "}}"));
  return all;
}

class SchemaRulesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void ExpectEqual(GrammarSpec spec) {
    const auto alone = CompileGrammar(spec, vocabulary_.vocabulary, {}, {});
    ASSERT_TRUE(alone.ok()) << alone.status();
    spec.own_text = true;  // this tokenizer's decoder drops the space at the beginning of a text
    const auto spaced = CompileGrammar(spec, vocabulary_.vocabulary, {}, {});
    ASSERT_TRUE(spaced.ok()) << spaced.status();
    for (int round = 0; round < 3; ++round) {
      std::unique_ptr<TokenConstraint> after_space = spaced->start->Clone();
      ASSERT_TRUE(after_space->Accept(SpaceToken()).ok());
      WalkBoth(alone->start->Clone(), std::move(after_space));
    }
  }

 private:
  int32_t SpaceToken() const {
    for (int32_t token = 0;; ++token) {
      if (vocabulary_.vocabulary->Bytes(token) == " ") return token;
    }
  }
  void WalkBoth(std::unique_ptr<TokenConstraint> one, std::unique_ptr<TokenConstraint> other) {
    std::string text;
    for (int i = 0; i < 80; ++i) {
      const std::vector<uint32_t> mask = MaskOf(one.get(), vocabulary_.vocabulary->vocab_size());
      ASSERT_EQ(mask, MaskOf(other.get(), vocabulary_.vocabulary->vocab_size())) << "after " << text;
      const std::vector<int32_t> allowed = BitsOf(mask);
      ASSERT_FALSE(allowed.empty()) << "after " << text;
      const int32_t token = allowed[random_() % allowed.size()];
      if (token == vocabulary_.end_token) return;
      text += vocabulary_.vocabulary->Bytes(token);
      ASSERT_TRUE(one->Accept(token).ok()) << text;
      ASSERT_TRUE(other->Accept(token).ok()) << text;
    }
  }

  const TestVocabulary vocabulary_ = std::move(TestVocabularies()[1]);
  std::mt19937 random_{11};
};

TEST_P(SchemaRulesTest, BothReadersAllowTheSameTokens) {
  using Whitespace = GrammarSpec::Whitespace;
  for (const Whitespace whitespace : {Whitespace::kFlexible, Whitespace::kCompact, Whitespace::kSpaced}) {
    for (const bool any_order : {false, true}) {
      SCOPED_TRACE(absl::StrCat("whitespace ", static_cast<int>(whitespace), ", any order ", any_order));
      GrammarSpec spec = {.kind = GrammarSpec::Kind::kJsonSchema, .text = GetParam(), .whitespace = whitespace};
      spec.any_order = any_order;
      ExpectEqual(spec);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemas, SchemaRulesTest, ::testing::ValuesIn(Schemas()));

}  // namespace
}  // namespace berth
