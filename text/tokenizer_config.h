// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside tokenizer.json, by the rules of
// transformers 5 (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__). Immutable; thread-safe.
//
// tokenizer_config.cc has a table of the fields of tokenizer_config.json and how Berth holds each;
// docs/checkpoint-files.md is made of it.
#ifndef BERTH_TEXT_TOKENIZER_CONFIG_H_
#define BERTH_TEXT_TOKENIZER_CONFIG_H_

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth {

class TokenizerConfig {
 public:
  // Files that are absent say nothing. INVALID_ARGUMENT: one is not a JSON object, or a field is wrong; the message
  // names file and field.
  static absl::StatusOr<TokenizerConfig> Load(const std::string& model_dir);

  // tokenizer_config.json itself.
  const nlohmann::ordered_json& value() const { return *json_; }
  // bos_token, eos_token, ...: an object of the texts of the special tokens, which chat templates read.
  const nlohmann::ordered_json& special_tokens() const { return *special_tokens_; }
  // What the tokenizer adds to tokenizer.json, for berth_tokenizer_load.
  const std::string& settings_json() const { return settings_json_; }
  // A line for each field that is not done, and one for those that are not known. `is_bpe`: the tokenizer's model is.
  // `adds`: whether the tokenizer adds the special token to a text.
  std::vector<std::string> Warnings(bool is_bpe, const std::function<bool(const std::string&)>& adds) const;

 private:
  TokenizerConfig() = default;

  std::string path_;
  std::shared_ptr<const nlohmann::ordered_json> json_;
  std::shared_ptr<const nlohmann::ordered_json> special_tokens_;
  std::string settings_json_;
};

// The file's object; an empty one without the file. INVALID_ARGUMENT naming the file and what is wrong.
absl::StatusOr<nlohmann::ordered_json> ReadJsonObject(const std::string& path);

}  // namespace berth

#endif  // BERTH_TEXT_TOKENIZER_CONFIG_H_
