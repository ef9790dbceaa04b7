// A model's tokenizer.json. What loads also encodes, decodes, and gives a grammar's vocabulary, or says why not.
#include "tests/fuzz/fuzz_input.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = berth::Tokenizer::Parse(berth::TextOf(data, size));
  if (!tokenizer.ok()) return 0;
  for (const char* text : {"", "a", "The name: \"abc\"  10\n", "\u00e9 \u65e5<s>b</s>"}) {
    const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/true, {.max_tokens = 64});
    if (ids.ok()) (*tokenizer)->Decode(*ids, /*skip_special_tokens=*/false).IgnoreError();
  }
  for (int32_t id = 0; id < 16; ++id) (*tokenizer)->TextOf(id);
  (*tokenizer)->Decode({1 << 30, 3}, /*skip_special_tokens=*/true).IgnoreError();
  FUZZ_CHECK((*tokenizer)->vocab_size() >= 0 && (*tokenizer)->longest_token_bytes() >= 0, "sizes");
  berth::GrammarVocabulary::Create(tokenizer->get(), /*vocab_size=*/300, {2}).IgnoreError();
  return 0;
}
