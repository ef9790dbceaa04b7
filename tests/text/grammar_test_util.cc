#include "tests/text/grammar_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/text/test_tokenizers.h"

namespace berth {
namespace {

void CheckDrafts(const TestVocabulary& vocabulary, TokenConstraint* constraint, std::mt19937* random) {
  const int64_t vocab_size = vocabulary.vocabulary->vocab_size();
  const size_t words = static_cast<size_t>(MaskWords(vocab_size));
  std::unique_ptr<TokenConstraint> copy = constraint->Clone();
  std::vector<int32_t> drafts;
  std::vector<std::vector<uint32_t>> masks = {MaskOf(copy.get(), vocab_size)};
  for (int i = 0; i < 3 && !copy->IsComplete(); ++i) {
    std::vector<int32_t> allowed = BitsOf(masks.back());
    allowed.erase(std::remove(allowed.begin(), allowed.end(), vocabulary.end_token), allowed.end());
    if (allowed.empty()) break;
    drafts.push_back(allowed[(*random)() % allowed.size()]);
    ASSERT_TRUE(copy->Accept(drafts.back()).ok());
    masks.push_back(MaskOf(copy.get(), vocab_size));
  }
  EXPECT_EQ(constraint->CountAllowed(drafts), static_cast<int64_t>(drafts.size()));
  std::vector<uint32_t> all((drafts.size() + 1) * words);
  if (masks.back().empty()) return;  // a dead end
  const absl::Status status = constraint->FillMasks(drafts, absl::MakeSpan(all));
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i <= drafts.size(); ++i) {
    EXPECT_TRUE(std::equal(masks[i].begin(), masks[i].end(), all.begin() + static_cast<int64_t>(i * words))) << i;
  }
}

// `is_first`: no token has come. There a mask lacks the tokens that would decode to another text, which Accept takes.
void CheckPlace(const TestVocabulary& vocabulary, TokenConstraint* constraint, const std::vector<uint32_t>& mask,
                const std::vector<int32_t>& forced, bool is_first, std::mt19937* random) {
  const int64_t vocab_size = vocabulary.vocabulary->vocab_size();
  const std::vector<int32_t> allowed = BitsOf(mask);
  if (!forced.empty()) {
    EXPECT_EQ(allowed, std::vector<int32_t>{forced[0]});
    EXPECT_EQ(constraint->CountAllowed(forced), static_cast<int64_t>(forced.size()));
  }
  const bool ends = allowed == std::vector<int32_t>{vocabulary.end_token};
  if (constraint->IsComplete()) {
    EXPECT_TRUE(ends) << allowed.size() << " tokens may come after the end";
  } else if (vocabulary.spells_all_bytes) {
    EXPECT_FALSE(ends) << "nothing may follow, and only the mask says so";
  }
  for (int i = 0; i < 20; ++i) {
    const int32_t token = i < 10 ? static_cast<int32_t>((*random)() % static_cast<uint64_t>(vocab_size))
                                 : allowed[(*random)() % allowed.size()];
    EXPECT_EQ(constraint->CountAllowed({&token, 1}) == 1, HasBit(mask, token))
        << token << " " << vocabulary.vocabulary->Bytes(token);
    const absl::Status status = constraint->Clone()->Accept(token);
    EXPECT_TRUE(status.ok() || !HasBit(mask, token)) << token << " " << status;
    EXPECT_TRUE(!status.ok() || HasBit(mask, token) || is_first) << token << " is accepted, and no mask has it";
  }
  EXPECT_EQ(MaskOf(constraint, vocab_size), mask) << "the position changed";
}

}  // namespace

std::vector<TestVocabulary> TestVocabularies() {
  const std::vector<std::string> words = {" the", " name", "name", "{\"", "\":",   "\": \"", "\",", "\"}",
                                          "true", "false", "null", " \"", "10",    "2024",   "ing", "ab",
                                          " a",   "abc",   ", ",   "  ",  "<tool", "=\"",    "\"a", "a\"",
                                          "}}",   "},",    "[\"",  "\"]", " b",    "-0"};
  std::vector<TestVocabulary> all(3);
  all[0].name = "byte-level";
  all[0].tokenizer = *Tokenizer::Load("models/demo/falcon_h1-demo");
  all[0].end_token = all[0].tokenizer->TokenId("<|im_end|>");
  const TestTokenizer sentencepiece = SentencePieceTokenizer(words, ByteTokens::kFirst);
  all[1].name = "sentencepiece";
  all[1].tokenizer = *Tokenizer::Parse(sentencepiece.json);
  all[1].end_token = sentencepiece.end_token;
  const TestTokenizer unigram = UnigramTokenizer(words);
  all[2].name = "unigram";
  all[2].tokenizer = *Tokenizer::Parse(unigram.json);
  all[2].end_token = unigram.end_token;
  all[2].spells_all_bytes = false;
  for (TestVocabulary& each : all) {
    // More ids than tokens, as models often have.
    auto vocabulary =
        GrammarVocabulary::Create(each.tokenizer.get(), each.tokenizer->vocab_size() + 37, {each.end_token});
    EXPECT_TRUE(vocabulary.ok()) << each.name << ": " << vocabulary.status();
    if (vocabulary.ok()) each.vocabulary = *vocabulary;
  }
  return all;
}

bool HasBit(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
}

std::vector<int32_t> BitsOf(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> bits;
  for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 32); ++token) {
    if (HasBit(mask, token)) bits.push_back(token);
  }
  return bits;
}

std::vector<uint32_t> MaskOf(TokenConstraint* constraint, int64_t vocab_size) {
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocab_size)), 0xFFFFFFFF);
  if (!constraint->FillMasks({}, absl::MakeSpan(mask)).ok()) return {};
  return mask;
}

Walk RandomWalk(const TestVocabulary& vocabulary, const TokenConstraint& start, int64_t max_tokens,
                std::mt19937* random, int end_weight) {
  Walk walk;
  std::unique_ptr<TokenConstraint> constraint = start.Clone();
  std::vector<int32_t> expected;  // forced tokens that are still to come
  while (static_cast<int64_t>(walk.tokens.size()) < max_tokens) {
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary.vocabulary->vocab_size())));
    walk.status = constraint->FillMasks({}, absl::MakeSpan(mask));
    if (!walk.status.ok()) return walk;
    std::vector<int32_t> forced;
    walk.status = constraint->AppendForced(1 << 20, &forced);
    if (!walk.status.ok()) return walk;
    const std::vector<int32_t> allowed = BitsOf(mask);
    EXPECT_FALSE(allowed.empty());
    if (allowed.empty()) return walk;
    if (!expected.empty()) {
      EXPECT_EQ(forced, expected) << "forced at once and one by one differ";
    }
    if ((*random)() % 4 == 0) {
      CheckPlace(vocabulary, constraint.get(), mask, forced, walk.tokens.empty(), random);
    }
    if ((*random)() % 8 == 0) CheckDrafts(vocabulary, constraint.get(), random);
    const bool may_end = HasBit(mask, vocabulary.end_token);
    if (may_end && (*random)() % (allowed.size() + static_cast<size_t>(end_weight)) < static_cast<size_t>(end_weight)) {
      walk.complete = true;
      return walk;
    }
    const int32_t token = allowed[(*random)() % allowed.size()];
    if (token == vocabulary.end_token) {
      walk.complete = true;
      return walk;
    }
    walk.num_forced += forced.empty() ? 0 : 1;
    walk.status = constraint->Accept(token);
    if (!walk.status.ok()) return walk;
    walk.tokens.push_back(token);
    expected.assign(forced.begin() + (forced.empty() ? 0 : 1), forced.end());
  }
  return walk;
}

}  // namespace berth
