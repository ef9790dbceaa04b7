// What must not depend on the order of a tokenizer's ids, with those of widespread families: the bytes of each token,
// characters outside the vocabulary in structures, and streamed text.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/text/grammar_test_util.h"
#include "tests/text/test_tokenizers.h"
#include "text/detokenizer.h"
#include "text/grammar.h"

namespace berth {
namespace {

// More ids than tokens, as models often have.
constexpr int64_t kUnusedIds = 37;
// The most tokens that a stream keeps, whatever came before.
constexpr int64_t kMostKept = 20;

class TokenFamiliesTest : public ::testing::TestWithParam<TestTokenizer> {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Parse(GetParam().json);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    auto vocabulary = GrammarVocabulary::Create(tokenizer_.get(), num_ids(), {GetParam().end_token});
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    vocabulary_ = *std::move(vocabulary);
  }

  int64_t num_ids() const { return static_cast<int64_t>(GetParam().bytes.size()) + kUnusedIds; }
  bool spells_all_bytes() const { return GetParam().name != "t5"; }
  // Decoders of byte-fallback vocabularies mark a whole run of bytes for one that is wrong.
  bool has_byte_tokens() const { return tokenizer_->TokenId("<0xE8>") >= 0; }
  bool is_special(int32_t id) const {
    const std::string& bytes = GetParam().bytes[static_cast<size_t>(id)];
    return bytes.size() > 1 && bytes[0] == '\xFF';
  }

  // Tokens of these bytes after other text, one for each byte.
  std::vector<int32_t> ByteByByte(const std::string& text) const {
    std::vector<int32_t> ids;
    for (char c : text) {
      for (size_t id = 0; id < GetParam().bytes.size(); ++id) {
        if (GetParam().bytes[id] != std::string(1, c)) continue;
        ids.push_back(static_cast<int32_t>(id));
        break;
      }
    }
    EXPECT_EQ(ids.size(), text.size());
    return ids;
  }

  // Any tokens; with byte tokens, whole characters spelled out instead of single bytes above 0x7F.
  std::vector<int32_t> RandomText(std::mt19937* random, int count) const {
    std::vector<int32_t> ids;
    for (int i = 0; i < count; ++i) {
      const auto id = static_cast<int32_t>((*random)() % GetParam().bytes.size());
      const std::string& bytes = GetParam().bytes[static_cast<size_t>(id)];
      if (has_byte_tokens() && bytes.size() == 1 && (bytes[0] & 0x80) != 0) {
        const std::vector<int32_t> character = ByteByByte(i % 2 == 0 ? "\u8a9e" : "\U0001F642");
        ids.insert(ids.end(), character.begin(), character.end());
      } else {
        ids.push_back(id);
      }
    }
    return ids;
  }

  std::string Stream(const std::vector<int32_t>& ids, bool skip) const {
    Detokenizer detokenizer(tokenizer_.get(), skip);
    std::string all;
    for (int32_t id : ids) {
      const auto piece = detokenizer.Add({id});
      EXPECT_TRUE(piece.ok()) << piece.status();
      all += *piece;
      EXPECT_LE(detokenizer.num_kept(), kMostKept);
    }
    return all + *detokenizer.Flush();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

TEST_P(TokenFamiliesTest, EachTokenHasItsBytes) {
  ASSERT_EQ(tokenizer_->vocab_size(), static_cast<int64_t>(GetParam().bytes.size()));
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string& bytes = GetParam().bytes[static_cast<size_t>(id)];
    EXPECT_EQ(vocabulary_->Bytes(id), bytes == "\xFF" ? "" : bytes) << "of token " << id;  // no text has 0xFF
  }
  for (int64_t id = tokenizer_->vocab_size(); id < num_ids(); ++id) {
    EXPECT_EQ(vocabulary_->Bytes(static_cast<int32_t>(id)), "");
  }
}

TEST_P(TokenFamiliesTest, StructuresHaveCharactersOutsideTheVocabulary) {
  TestVocabulary vocabulary;
  vocabulary.vocabulary = vocabulary_;
  vocabulary.end_token = GetParam().end_token;
  vocabulary.spells_all_bytes = spells_all_bytes();
  const std::string text = "\u8a9ea\U0001F642";
  const auto choice = CompileGrammar({.kind = GrammarSpec::Kind::kChoice, .choices = {text}}, vocabulary_, {}, {});
  EXPECT_EQ(choice.ok(), spells_all_bytes()) << choice.status();
  if (!choice.ok()) return;
  std::mt19937 random(1);
  const Walk walk = RandomWalk(vocabulary, *choice->start, 100, &random);
  EXPECT_TRUE(walk.complete) << walk.status;
  EXPECT_EQ(*tokenizer_->Decode(walk.tokens, true), text);

  const auto object = CompileGrammar({.kind = GrammarSpec::Kind::kJsonObject}, vocabulary_, {}, {});
  ASSERT_TRUE(object.ok()) << object.status();
  const std::vector<int32_t> ids = ByteByByte(absl::StrCat("{\"", text, "\":\"", text, "\"}"));
  EXPECT_EQ(object->start->Clone()->CountAllowed(ids), static_cast<int64_t>(ids.size()));
}

TEST_P(TokenFamiliesTest, StreamsOfRandomTokensGiveTheTextOfAllAtOnce) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const bool skip = round % 2 == 0;
    const std::vector<int32_t> ids = RandomText(&random, 40);
    EXPECT_EQ(Stream(ids, skip), *tokenizer_->Decode(ids, skip)) << "round " << round;
  }
}

// Special tokens that are left out, and ids without a token, in any number and within characters too.
TEST_P(TokenFamiliesTest, TokensWithoutTextChangeNothing) {
  std::vector<int32_t> none = {static_cast<int32_t>(num_ids()) - 1};
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (is_special(id)) none.push_back(id);
  }
  const std::vector<int32_t> text = ByteByByte(spells_all_bytes() ? "a\u8a9e\U0001F642 b" : "a b");
  std::vector<int32_t> ids;
  for (int32_t id : text) {
    for (int i = 0; i < 300; ++i) ids.push_back(none[static_cast<size_t>(i) % none.size()]);
    ids.push_back(id);
  }
  EXPECT_EQ(Stream(ids, true), *tokenizer_->Decode(text, true));
  const std::vector<int32_t> unused(1000, none[0]);
  EXPECT_EQ(Stream(unused, false), "");
}

INSTANTIATE_TEST_SUITE_P(All, TokenFamiliesTest, ::testing::ValuesIn(FamilyTokenizers()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !absl::ascii_isalnum(c); }, '_');
  return name;
});

}  // namespace
}  // namespace berth
