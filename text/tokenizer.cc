#include "text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "text/abi_call.h"
#include "text/tokenizer_config.h"

namespace berth {
absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  std::ostringstream content;
  content << file.rdbuf();
  const absl::StatusOr<TokenizerConfig> config = TokenizerConfig::Load(model_dir);
  if (!config.ok()) return config.status();
  auto tokenizer = Parse(content.str(), config->settings_json());
  if (!tokenizer.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", tokenizer.status().message()));
  const absl::StatusOr<std::vector<int32_t>> added = (*tokenizer)->Encode("", /*add_special_tokens=*/true);
  (*tokenizer)->warnings_ = config->Warnings(berth_tokenizer_is_bpe((*tokenizer)->get()), [&](const std::string& text) {
    return added.ok() && std::count(added->begin(), added->end(), (*tokenizer)->TokenId(text)) > 0;
  });
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(absl::string_view json, absl::string_view settings_json) {
  BerthTokenizer* tokenizer = nullptr;
  BerthBytes error{};
  const int32_t result = berth_tokenizer_load(BytesOf(json), json.size(), BytesOf(settings_json), settings_json.size(),
                                              &tokenizer, &error);
  if (absl::Status status = CallStatus(result, error, "tokenizer"); !status.ok()) return status;
  return absl::WrapUnique(new Tokenizer(tokenizer));
}

Tokenizer::Tokenizer(BerthTokenizer* tokenizer)
    : tokenizer_(tokenizer),
      vocab_size_(berth_tokenizer_size(tokenizer)),
      longest_token_bytes_(berth_tokenizer_longest_token(tokenizer)) {}

Tokenizer::~Tokenizer() { berth_tokenizer_free(tokenizer_); }

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text, bool add_special_tokens,
                                                       const EncodeBounds& bounds) const {
  if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("text: ", text.size(), " bytes are over ", kMaxTextBytes));
  }
  struct Stop {
    const std::function<bool()>* asked;
    bool stopped;
  } stop = {&bounds.stop, false};
  const auto ask = [](const void* data) {
    auto* const stop = static_cast<Stop*>(const_cast<void*>(data));
    stop->stopped = (*stop->asked)();
    return stop->stopped;
  };
  BerthIds ids{};
  BerthBytes error{};
  const int32_t result =
      berth_tokenizer_encode(tokenizer_, BytesOf(text), text.size(), add_special_tokens,
                             static_cast<size_t>(bounds.max_tokens), bounds.stop ? +ask : nullptr, &stop, &ids, &error);
  if (absl::Status status = CallStatus(result, error, "text"); !status.ok()) {
    return stop.stopped ? absl::CancelledError("stopped while the text was tokenised") : status;
  }
  std::vector<int32_t> tokens(ids.data, ids.data + ids.len);
  berth_ids_free(ids);
  if (bounds.max_tokens > 0 && static_cast<int64_t>(tokens.size()) > bounds.max_tokens) {
    return absl::OutOfRangeError(absl::StrCat("over ", bounds.max_tokens, " tokens"));
  }
  return tokens;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  for (int32_t id : ids) {
    if (id < 0) return absl::InvalidArgumentError(absl::StrCat("token id ", id, " is negative"));
  }
  BerthBytes text{};
  BerthBytes error{};
  const auto* data = reinterpret_cast<const uint32_t*>(ids.data());
  const int32_t result = berth_tokenizer_decode(tokenizer_, data, ids.size(), skip_special_tokens, &text, &error);
  if (absl::Status status = CallStatus(result, error, "token ids"); !status.ok()) return status;
  return TakeString(text);
}

bool Tokenizer::Reads(int32_t id, bool skip_special_tokens) const {
  return id >= 0 && berth_tokenizer_reads(tokenizer_, static_cast<uint32_t>(id), skip_special_tokens);
}

int32_t Tokenizer::TokenId(absl::string_view token) const {
  return static_cast<int32_t>(berth_tokenizer_id(tokenizer_, BytesOf(token), token.size()));
}

TokenText Tokenizer::TextOf(int32_t id, bool first) const {
  if (id < 0) return {};
  BerthTokenText found{};
  BerthBytes error{};
  const int32_t result = berth_tokenizer_token_text(tokenizer_, static_cast<uint32_t>(id), first, &found, &error);
  if (!CallStatus(result, error, "token").ok()) return {};
  return {.text = TakeString(found.text), .bytes = TakeString(found.bytes)};
}

}  // namespace berth
