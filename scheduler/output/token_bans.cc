// The rules are those of transformers' logits_process.py: NoRepeatNGramLogitsProcessor,
// EncoderNoRepeatNGramLogitsProcessor, SuppressTokensLogitsProcessor, SuppressTokensAtBeginLogitsProcessor,
// SequenceBiasLogitsProcessor and NoBadWordsLogitsProcessor. A ban is a list of tokens and a bias an entry of
// logit_bias, so samplers know nothing of rules. An n-gram is found by one scan of the text, which needs no index that
// would have to follow preemptions, forks and beams.
#include "scheduler/output/token_bans.h"

#include <algorithm>
#include <cmath>

namespace berth {
namespace {

using Tokens = absl::Span<const int32_t>;

bool EndsWith(Tokens tokens, Tokens end) {
  return tokens.size() >= end.size() && std::equal(end.begin(), end.end(), tokens.end() - end.size());
}

bool Applies(const TokenRules::Bias& bias, Tokens tokens) {
  return EndsWith(tokens, Tokens(bias.tokens).first(bias.tokens.size() - 1));
}

// Sums the biases of a token before they are added to its logit, as transformers does.
void AddBias(int32_t token, float bias, size_t num_own, std::vector<std::pair<int32_t, float>>* biases) {
  for (size_t i = num_own; i < biases->size(); ++i) {
    if ((*biases)[i].first != token) continue;
    (*biases)[i].second += bias;
    return;
  }
  biases->emplace_back(token, bias);
}

}  // namespace

void BanRepeats(Tokens text, Tokens tokens, int64_t n, std::vector<int32_t>* banned) {
  const int64_t known = n - 1;
  if (static_cast<int64_t>(tokens.size()) < known || static_cast<int64_t>(text.size()) < n) return;
  if (known == 0) {
    banned->insert(banned->end(), text.begin(), text.end());
    return;
  }
  const Tokens end = tokens.last(known);
  // The last of the n - 1 is looked for, and the others are compared where it is.
  for (auto at = text.begin() + known - 1; at + 1 < text.end(); ++at) {
    at = std::find(at, text.end() - 1, end.back());
    if (at + 1 >= text.end()) return;
    if (std::equal(end.begin(), end.end() - 1, at - (known - 1))) banned->push_back(at[1]);
  }
}

void ApplyTokenRules(Sequence* sequence) {
  const Request& request = sequence->request;
  const TokenRules& rules = request.rules;
  std::vector<int32_t>& banned = sequence->banned;
  const Tokens tokens = sequence->tokens;
  banned.clear();
  const auto ban = [&banned](const std::vector<int32_t>& list) {
    banned.insert(banned.end(), list.begin(), list.end());
  };
  if (sequence->num_generated() < request.min_tokens) ban(request.stop_token_ids);
  ban(rules.suppressed);
  const int64_t first_free = sequence->prompt_length > 1 || request.forced_first.empty() ? 0 : 1;
  if (sequence->num_generated() == first_free) ban(rules.suppressed_first);
  if (const int64_t n = rules.no_repeat_ngram_size; n > 0) BanRepeats(tokens, tokens, n, &banned);
  if (const int64_t n = rules.no_repeat_input_ngram_size; n > 0) {
    const Tokens prompt = tokens.first(sequence->prompt_length);
    BanRepeats(request.encoder_tokens.empty() ? prompt : Tokens(request.encoder_tokens), tokens, n, &banned);
  }
  std::vector<std::pair<int32_t, float>>& biases = sequence->request.sampling.logit_bias;
  biases.resize(sequence->num_own_biases);
  for (const TokenRules::Bias& bias : rules.biases) {
    if (!Applies(bias, tokens)) continue;
    if (std::isinf(bias.bias)) {
      banned.push_back(bias.tokens.back());
    } else {
      AddBias(bias.tokens.back(), bias.bias, sequence->num_own_biases, &biases);
    }
  }
}

}  // namespace berth
