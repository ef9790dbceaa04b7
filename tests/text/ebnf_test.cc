// EBNF in Lark's words: the texts that the compiled translation allows are those of the EBNF.
#include "text/ebnf.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/text/grammar_test_util.h"
#include "text/grammar.h"

namespace berth {
namespace {

class EbnfTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabularies_ = new std::vector<TestVocabulary>(TestVocabularies()); }
  static void TearDownTestSuite() { delete vocabularies_; }

  static absl::StatusOr<CompiledGrammar> Compile(const std::string& ebnf) {
    const absl::StatusOr<std::string> lark = EbnfToLark(ebnf);
    if (!lark.ok()) return lark.status();
    return CompileGrammar({.kind = GrammarSpec::Kind::kLark, .text = *lark}, vocabulary().vocabulary, {}, {});
  }
  static const TestVocabulary& vocabulary() { return (*vocabularies_)[0]; }

  // Whether the grammar allows the text as a whole.
  static bool Allows(const CompiledGrammar& grammar, const std::string& text) {
    const std::unique_ptr<TokenConstraint> constraint = grammar.start->Clone();
    const std::vector<int32_t> tokens = *vocabulary().tokenizer->Encode(text, false);
    for (const int32_t token : tokens) {
      if (!HasBit(MaskOf(constraint.get(), vocabulary().vocabulary->vocab_size()), token)) return false;
      if (!constraint->Accept(token).ok()) return false;
    }
    return HasBit(MaskOf(constraint.get(), vocabulary().vocabulary->vocab_size()), vocabulary().end_token);
  }
  static void Expect(const std::string& ebnf, const std::vector<std::string>& allowed,
                     const std::vector<std::string>& refused) {
    const absl::StatusOr<CompiledGrammar> grammar = Compile(ebnf);
    ASSERT_TRUE(grammar.ok()) << grammar.status() << "\n" << EbnfToLark(ebnf).value_or("");
    for (const std::string& text : allowed) EXPECT_TRUE(Allows(*grammar, text)) << ebnf << "\n" << text;
    for (const std::string& text : refused) EXPECT_FALSE(Allows(*grammar, text)) << ebnf << "\n" << text;
    std::mt19937 random(3);
    for (int round = 0; round < 3; ++round) {
      const Walk walk = RandomWalk(vocabulary(), *grammar->start, 30, &random, 20);
      EXPECT_TRUE(walk.status.ok()) << walk.status;
    }
  }
  static std::string ErrorOf(const std::string& ebnf) {
    const absl::StatusOr<std::string> lark = EbnfToLark(ebnf);
    return lark.ok() ? "" : std::string(lark.status().message());
  }

 private:
  static std::vector<TestVocabulary>* vocabularies_;
};

std::vector<TestVocabulary>* EbnfTest::vocabularies_ = nullptr;

TEST_F(EbnfTest, IsToldFromLark) {
  EXPECT_TRUE(IsEbnf("root ::= \"a\""));
  EXPECT_FALSE(IsEbnf("start: \"a\""));
}

TEST_F(EbnfTest, EveryConstructMeansWhatItSays) {
  Expect("root ::= \"ab\" | \"c\" \"d\"", {"ab", "cd"}, {"", "a", "abcd", "c"});
  Expect("root ::= \"a\"* \"b\"+ \"c\"?", {"b", "aabbc"}, {"a", "aac", "bcc"});
  Expect("root ::= \"ab\"{2} [xy]{1,2} \"z\"{2,}", {"ababxzz", "ababxyzzz"},
         {"abxzz", "ababzz", "ababxyxzz", "ababxz"});
  Expect("root ::= (\"a\" | \"b\" \"c\")+ \".\"", {"a.", "bca."}, {".", "b."});
  Expect("root ::= [a-cx] [^a-c] [-z]", {"ad-", "xxz"}, {"dd-", "aa-", "adz-"});
  Expect("root ::= \"<\" . \">\"", {"<a>", "<\n>", "<é>"}, {"<>", "<aa>"});
  Expect("root ::= \"a\" | \"\"", {"", "a"}, {"aa"});
  Expect("root ::= (\"a\" |) \"b\"", {"b", "ab"}, {"a"});
}

TEST_F(EbnfTest, ALexemeNeverTakesMoreThanACharacter) {
  // As regexes of Lark these would swallow what must follow.
  Expect("root ::= [0-9]* [0-9] \"!\"", {"1!", "123!"}, {"!"});
  Expect("root ::= word \"end\"\nword ::= [a-z]*", {"end", "endend", "xend"}, {"en", "xen"});
  Expect("root ::= \"abc\" | [a-z]{2} \"d\"", {"abc", "abd", "xyd"}, {"abx"});
}

TEST_F(EbnfTest, RulesMayBeRecursiveAndOverSeveralLines) {
  Expect("# sums\nroot ::= term\n  (\"+\" term)*  # more\nterm ::= num |\n \"(\" root \")\"\nnum ::= [0-9]+",
         {"1", "1+(2+3)", "((4))"}, {"1+", "(1", "1)"});
  Expect("root ::= list-of\nlist-of ::= item | list-of \",\" item\nitem ::= \"i\" | List_Of\nList_Of ::= \"L\"",
         {"i", "i,L,i"}, {",", "i,"});
}

TEST_F(EbnfTest, EscapesNameCharacters) {
  Expect(R"(root ::= "\n\t\\\"" [\]\-\\])", {"\n\t\\\"]", "\n\t\\\"-", "\n\t\\\"\\"}, {"\n\t\\\"a"});
  Expect(R"(root ::= "\x41\u00e9\U0001F600" [\u4e00-\u9fff])", {"Aé😀中"}, {"Aé😀a"});
  Expect("root ::= \"é/中\" [é-ü]", {"é/中ö"}, {"é/中a"});
  Expect(R"(root ::= "a#b" # "no literal")", {"a#b"}, {"a"});
}

TEST_F(EbnfTest, ErrorsNameTheLineAndTheConstruct) {
  EXPECT_EQ(ErrorOf("root ::= other"), "line 1: there is no rule other");
  EXPECT_EQ(ErrorOf("other ::= \"a\""), "there is no rule root");
  EXPECT_EQ(ErrorOf("root ::= \"a\"\nroot ::= \"b\""), "line 2: the rule is defined twice");
  EXPECT_EQ(ErrorOf("root ::= \"a"), "line 1: a literal has no end");
  EXPECT_EQ(ErrorOf("root ::= \"a\n\""), "line 1: a literal has no end");
  EXPECT_EQ(ErrorOf("root ::= [a"), "line 1: a class of characters has no end");
  EXPECT_EQ(ErrorOf("root ::= []"), "line 1: a class of characters is empty");
  EXPECT_EQ(ErrorOf("root ::= [z-a]"), "line 1: a class has a range from a later character to an earlier one");
  EXPECT_EQ(ErrorOf("\nroot ::= (\"a\""), "line 2: a group has no end");
  EXPECT_EQ(ErrorOf("root ::= (= \"a\")"), "line 1: there is no construct \"=\"");
  EXPECT_EQ(ErrorOf("root ::= 'a'"), "line 1: there is no construct \"'\"");
  EXPECT_EQ(ErrorOf("root ::= \"a\")"), "line 1: a rule must begin with a name and ::=, not with \")\"");
  EXPECT_EQ(ErrorOf("root ::= TagDispatch(a)"), "line 1: there is no rule TagDispatch");
  EXPECT_EQ(ErrorOf(R"(root ::= "\q")"), "line 1: there is no escape \\\"q\"");
  EXPECT_EQ(ErrorOf(R"(root ::= "\ud800")"), "line 1: an escape of 4 hexadecimal digits names no character");
  EXPECT_EQ(ErrorOf("root ::= \"a\"*?"), "line 1: a repetition is repeated; put it into a group");
  EXPECT_EQ(ErrorOf("root ::= \"a\"{3,2}"), "line 1: {3,2} has no number in it");
  EXPECT_EQ(ErrorOf("root ::= \"a\"{99999}"),
            "line 1: a repetition must be {n}, {n,} or {n,m}, with numbers up to 10000");
  EXPECT_EQ(ErrorOf("root ::= " + std::string(100, '(')), "line 1: over 64 groups within each other");
}

TEST_F(EbnfTest, NoTextCrashesIt) {
  const std::string pieces[] = {"root", " ::= ", "\"", "[", "]", "^", "-", "(", ")",  "|", "*",    "{", "1",
                                ",",    "}",     "\\", "x", "u", "4", ".", "#", "\n", "é", "\xff", "'", "?"};
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::string text = "root ::= ";
    const int count = static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i) text += pieces[random() % std::size(pieces)];
    const absl::StatusOr<std::string> lark = EbnfToLark(text);
    EXPECT_TRUE(lark.ok() || absl::IsInvalidArgument(lark.status())) << lark.status();
  }
}

}  // namespace
}  // namespace berth
