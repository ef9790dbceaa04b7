// Small tokenizers of each kind, and walks through a grammar that check what TokenConstraint promises.
#ifndef BERTH_TESTS_TEXT_GRAMMAR_TEST_UTIL_H_
#define BERTH_TESTS_TEXT_GRAMMAR_TEST_UTIL_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/tokenizer.h"

namespace berth {

// What tokenizer.json holds: BPE with fallback to bytes as sentencepiece's, and Unigram without such a fallback.
// `words` get tokens of their own.
std::string SentencePieceJson(const std::vector<std::string>& words);
std::string UnigramJson(const std::vector<std::string>& words);

struct TestVocabulary {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  int32_t end_token = 0;
  bool spells_all_bytes = true;
};

// The demo model's tokenizer (byte-level BPE), and the two above.
std::vector<TestVocabulary> TestVocabularies();

bool HasBit(const std::vector<uint32_t>& mask, int32_t token);
std::vector<int32_t> BitsOf(const std::vector<uint32_t>& mask);
std::vector<uint32_t> MaskOf(TokenConstraint* constraint, int64_t vocab_size);

// Steps of a compilation from one look at the request to stop to the next: less than 100 ms.
inline constexpr uint64_t kMostStepsBetweenLooks = 24'000;

struct Walk {
  std::vector<int32_t> tokens;  // without the end token
  bool complete = false;
  int64_t num_forced = 0;
  absl::Status status;
};

// Takes allowed tokens at random up to the end or `max_tokens`. Checks at each place, by EXPECT, that mask, forced
// tokens, CountAllowed, drafts, clones and the end agree. `end_weight`: how many times likelier than others the end is.
Walk RandomWalk(const TestVocabulary& vocabulary, const TokenConstraint& start, int64_t max_tokens,
                std::mt19937* random, int end_weight = 1);

}  // namespace berth

#endif  // BERTH_TESTS_TEXT_GRAMMAR_TEST_UTIL_H_
