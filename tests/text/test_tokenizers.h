// Small tokenizers as tokenizer.json holds them. Their ids are in the order of widespread families of models, and the
// bytes of each token are known from how it was made, not from a decoder.
#ifndef BERTH_TESTS_TEXT_TEST_TOKENIZERS_H_
#define BERTH_TESTS_TEXT_TEST_TOKENIZERS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace berth {

struct TestTokenizer {
  std::string name;
  std::string json;
  std::vector<std::string> bytes;  // of each id; those of a special token are its name after 0xFF
  int32_t end_token = 0;
};

// How GoogleTest shows one, and a test of it.
inline void PrintTo(const TestTokenizer& tokenizer, std::ostream* out) { *out << tokenizer.name; }
std::string NameOfFamily(const ::testing::TestParamInfo<TestTokenizer>& info);

// Where the tokens of one byte are: after the special tokens (llama-2, mistral, phi-3), after some tokens of text
// (gemma), or after all.
enum class ByteTokens { kFirst, kMiddle, kLast };

// BPE with a fallback to bytes, as sentencepiece's. `words` get tokens of their own.
TestTokenizer SentencePieceTokenizer(const std::vector<std::string>& words, ByteTokens order);
// Unigram without a fallback, as T5's.
TestTokenizer UnigramTokenizer(const std::vector<std::string>& words);
// BPE over bytes. `first`: special tokens before all others; `last`: those after them. `texts`: added tokens that are
// not special, at the end.
TestTokenizer ByteLevelTokenizer(const std::vector<std::string>& first, const std::vector<std::string>& last,
                                 const std::vector<std::string>& texts);

// llama-2, gemma-3, two with byte tokens later, t5, gpt-2, llama-3.1, qwen-3, deepseek-v3, gpt-oss. None has a token of
// U+8A9E or U+1F642 alone; all but t5 spell them in parts.
std::vector<TestTokenizer> FamilyTokenizers();

}  // namespace berth

#endif  // BERTH_TESTS_TEXT_TEST_TOKENIZERS_H_
