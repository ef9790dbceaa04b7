// Rules of a model that ban tokens, or bias them, by what came before: the logits processors that transformers'
// generate() makes of generation_config.json. Plain data; no torch.
#ifndef BERTH_MODELS_TOKEN_RULES_H_
#define BERTH_MODELS_TOKEN_RULES_H_

#include <cstdint>
#include <vector>

namespace berth {

inline constexpr int64_t kMaxNgramSize = 1 << 20;

struct TokenRules {
  // Adds `bias` to the logit of the last of `tokens` where the others come before it. -inf: a bad word.
  struct Bias {
    std::vector<int32_t> tokens;  // at least one
    float bias = 0;

    friend bool operator==(const Bias&, const Bias&) = default;
  };

  int32_t no_repeat_ngram_size = 0;        // no n-gram of prompt and output comes twice; 0: any may
  int32_t no_repeat_input_ngram_size = 0;  // no n-gram of the input, which an encoder reads if there is one; 0: any may
  std::vector<int32_t> suppressed;         // never come
  std::vector<int32_t> suppressed_first;   // never come as the first token that is chosen freely
  std::vector<Bias> biases;                // those of one token first, as transformers adds them

  bool empty() const { return *this == TokenRules(); }

  friend bool operator==(const TokenRules&, const TokenRules&) = default;
};

}  // namespace berth

#endif  // BERTH_MODELS_TOKEN_RULES_H_
