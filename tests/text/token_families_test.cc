// What must not depend on the order of a tokenizer's ids, with those of widespread families: the bytes of each token,
// characters outside the vocabulary in structures, and streamed text.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

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
constexpr int64_t kMostKept = 12;

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
    all += *detokenizer.Flush();
    return all;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

TEST_P(TokenFamiliesTest, EachTokenHasItsBytes) {
  ASSERT_EQ(tokenizer_->vocab_size(), static_cast<int64_t>(GetParam().bytes.size()));
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string& bytes = GetParam().bytes[static_cast<size_t>(id)];
    EXPECT_EQ(vocabulary_->Bytes(id), bytes == "\xFF" ? "" : bytes) << "of token " << id;  // no text has 0xFF
    const TokenText text = tokenizer_->TextOf(id);
    EXPECT_EQ(text.all_bytes(), is_special(id) ? bytes.substr(1) : bytes) << "of token " << id;
    EXPECT_EQ(text.text.find("\uFFFD") == std::string::npos, text.bytes.empty());
  }
  for (int64_t id = tokenizer_->vocab_size(); id < num_ids(); ++id) {
    EXPECT_EQ(vocabulary_->Bytes(static_cast<int32_t>(id)), "");
    EXPECT_EQ(tokenizer_->TextOf(static_cast<int32_t>(id)).all_bytes(), "");
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
  for (int32_t id = 0; id < num_ids(); ++id) {
    if (!vocabulary_->Bytes(id).empty()) continue;
    EXPECT_FALSE(object->start->Clone()->Accept(id).ok()) << "token " << id << " has no bytes";
    EXPECT_EQ(object->start->Clone()->CountAllowed({&id, 1}), 0) << "token " << id << " has no bytes";
  }
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

// A character that the prompt began is the output's; if the output does not complete it, its mark is not.
TEST_P(TokenFamiliesTest, ACharacterMayBeSplitAnywhereBetweenPromptAndOutput) {
  if (!spells_all_bytes()) return;
  const std::string text = "ab\u8a9e\U0001F642\u8a9e\u8a9ec\u8a9e\u8a9e\u8a9e\u8a9ed";
  const std::vector<int32_t> ids = ByteByByte(text);
  for (size_t split = 1; split < ids.size(); ++split) {
    for (const size_t context : {size_t{1}, size_t{4}, size_t{8}, split}) {
      const size_t from = split - std::min(split, context);
      Detokenizer detokenizer(tokenizer_.get(), true, absl::MakeConstSpan(ids).subspan(from, split - from));
      std::string all;
      for (size_t i = split; i < ids.size(); ++i) all += *detokenizer.Add({ids[i]});
      all += *detokenizer.Flush();
      size_t begin = split;  // of the character that the split is in, unless the context has none of its beginning
      while (begin > from && (text[begin] & 0xC0) == 0x80) --begin;
      if ((text[begin] & 0xC0) == 0x80) continue;
      EXPECT_EQ(all, text.substr(begin)) << "split at " << split << ", context " << context;
    }
    const size_t from = split - std::min<size_t>(split, 8);
    Detokenizer other(tokenizer_.get(), true, absl::MakeConstSpan(ids).subspan(from, split - from));
    std::string all = *other.Add({tokenizer_->TokenId("z"), tokenizer_->TokenId("!")});
    all += *other.Flush();
    EXPECT_EQ(all, "z!");
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenFamiliesTest, ::testing::ValuesIn(FamilyTokenizers()), NameOfFamily);

// Tokens that decoding reads, but that have no text.
TEST(TokensWithoutText, KeepTheStreamsCostFlat) {
  const std::vector<TestTokenizer> families = FamilyTokenizers();
  const TestTokenizer& gemma = families[1];
  nlohmann::json json = nlohmann::json::parse(gemma.json);
  nlohmann::json& decoders = json["decoder"]["decoders"];
  const nlohmann::json drop = {{"type", "Replace"}, {"pattern", {{"String", "<unused0>"}}}, {"content", ""}};
  decoders.insert(decoders.begin(), /*cnt=*/1, drop);
  const auto tokenizer = Tokenizer::Parse(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const int32_t empty = (*tokenizer)->TokenId("<unused0>");
  ASSERT_EQ((*tokenizer)->TextOf(empty).text, "");
  std::vector<int32_t> ids;
  for (const char* token : {"<0xE8>", "<0xAA>", "<0x9E>", "a", "\u2581", "b"}) {
    ids.push_back((*tokenizer)->TokenId(token));
    ids.insert(ids.end(), token[0] == '<' && token[3] != '9' ? 0 : 500, empty);
  }
  for (const auto& all : {ids, std::vector<int32_t>(1000, empty)}) {
    Detokenizer detokenizer(tokenizer->get(), true);
    std::string text;
    for (int32_t id : all) {
      text += *detokenizer.Add({id});
      EXPECT_LE(detokenizer.num_kept(), kMostKept);
    }
    text += *detokenizer.Flush();
    EXPECT_EQ(text, *(*tokenizer)->Decode(all, true));
  }
}

}  // namespace
}  // namespace berth
