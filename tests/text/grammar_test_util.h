// Vocabularies of each kind of tokenizer, and walks through a grammar that check what TokenConstraint promises.
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

struct TestVocabulary {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  int32_t end_token = 0;
  bool spells_all_bytes = true;
};

// Vocabularies of the demo model's tokenizer (byte-level BPE), of one of sentencepiece's kind, and of one of T5's.
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
