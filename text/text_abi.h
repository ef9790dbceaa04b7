// The C ABI of text/crate. Calls return 0, or 1 with a message in `error`. Free their results with berth_bytes_free or
// berth_ids_free. Tokenizers and templates are immutable: several threads may call one at once.
#ifndef BERTH_TEXT_TEXT_ABI_H_
#define BERTH_TEXT_TEXT_ABI_H_

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct BerthBytes {
  uint8_t* data;
  size_t len;
};
struct BerthIds {
  uint32_t* data;
  size_t len;
};
void berth_bytes_free(BerthBytes bytes);
void berth_ids_free(BerthIds ids);

struct BerthTokenizer;
int32_t berth_tokenizer_load(const uint8_t* json, size_t len, BerthTokenizer** out, BerthBytes* error);
void berth_tokenizer_free(BerthTokenizer* tokenizer);
int32_t berth_tokenizer_encode(const BerthTokenizer* tokenizer, const uint8_t* text, size_t len,
                               bool add_special_tokens, BerthIds* out, BerthBytes* error);
int32_t berth_tokenizer_decode(const BerthTokenizer* tokenizer, const uint32_t* ids, size_t len,
                               bool skip_special_tokens, BerthBytes* out, BerthBytes* error);
int32_t berth_tokenizer_token(const BerthTokenizer* tokenizer, uint32_t id, BerthBytes* out, BerthBytes* error);
int64_t berth_tokenizer_id(const BerthTokenizer* tokenizer, const uint8_t* token, size_t len);
int64_t berth_tokenizer_size(const BerthTokenizer* tokenizer);

struct BerthTemplate;
int32_t berth_template_load(const uint8_t* source, size_t len, BerthTemplate** out, BerthBytes* error);
void berth_template_free(BerthTemplate* chat_template);
int32_t berth_template_render(const BerthTemplate* chat_template, const uint8_t* context, size_t len, BerthBytes* out,
                              BerthBytes* error);

}  // extern "C"

#endif  // BERTH_TEXT_TEXT_ABI_H_
