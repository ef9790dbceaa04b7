// Three files name tokens, and which one counts depends on the others:
//
//   tokenizer_config.json   bos_token, ..., extra_special_tokens; added_tokens_decoder: by id
//   special_tokens_map.json bos_token, ...                        } count only without an added_tokens_decoder;
//   added_tokens.json       by id                                 } the map wins over tokenizer_config.json
//
// What of these tokenizer.json lacks is added to its tokenizer, in the order of transformers: it gives the ids.
#include "text/tokenizer_config.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace berth {
namespace {

using Json = nlohmann::ordered_json;  // templates may print keys in their order

enum class Use { kHonoured, kNoEffect, kWarned };
using enum Use;

struct Field {
  absl::string_view name;
  Use use;
  absl::string_view note;
};

// The fields of tokenizer_config.json. Any other whose name ends in "_token" is a special token of the model.
// clang-format off
constexpr Field kFields[] = {
    {"added_tokens_decoder", kHonoured, "tokens that tokenizer.json lacks are added"},
    {"additional_special_tokens", kHonoured, "the older name of extra_special_tokens"},
    {"bos_token", kHonoured, "a special token, and a variable of the chat template"},
    {"chat_template", kHonoured, "one template, or several by name"},
    {"cls_token", kHonoured, "a special token, and a variable of the chat template"},
    {"eos_token", kHonoured, "a special token, and a variable of the chat template; outputs end by eos_token_id"},
    {"extra_special_tokens", kHonoured, "special tokens that tokenizer.json lacks are added"},
    {"mask_token", kHonoured, "a special token, and a variable of the chat template"},
    {"pad_token", kHonoured, "a special token, and a variable of the chat template"},
    {"sep_token", kHonoured, "a special token, and a variable of the chat template"},
    {"split_special_tokens", kHonoured, "special tokens in a text are split like any text"},
    {"unk_token", kHonoured, "a special token, and a variable of the chat template"},
    {"clean_up_tokenization_spaces", kWarned, "takes spaces before punctuation out; BPE tokenizers never do it"},
    {"add_bos_token", kNoEffect, "transformers 5 reads the post-processor of tokenizer.json instead"},
    {"add_eos_token", kNoEffect, "transformers 5 reads the post-processor of tokenizer.json instead"},
    {"add_prefix_space", kNoEffect, "tokenizer.json says it"},
    {"auto_map", kNoEffect, "Berth runs no code of a checkpoint"},
    {"backend", kNoEffect, "Berth has one"},
    {"clean_text", kNoEffect, "tokenizer.json says it"},
    {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", kNoEffect, "Berth does not corrupt it"},
    {"do_basic_tokenize", kNoEffect, "tokenizer.json says it"},
    {"do_lower_case", kNoEffect, "tokenizer.json says it"},
    {"errors", kNoEffect, "U+FFFD stands for bytes that are not UTF-8"},
    {"extra_ids", kNoEffect, "tokenizer.json says it"},
    {"files_loaded", kNoEffect, "about the file"},
    {"fix_mistral_regex", kNoEffect, "tokenizer.json says it"},
    {"from_slow", kNoEffect, "Berth reads tokenizer.json"},
    {"init_inputs", kNoEffect, "about the file"},
    {"is_local", kNoEffect, "about the file"},
    {"keep_accents", kNoEffect, "tokenizer.json says it"},
    {"legacy", kNoEffect, "tokenizer.json says it"},
    {"local_files_only", kNoEffect, "about the file"},
    {"max_len", kNoEffect, "Berth truncates no prompt; --max_sequence_tokens"},
    {"max_length", kNoEffect, "Berth truncates no prompt; --max_sequence_tokens"},
    {"model_input_names", kNoEffect, "Berth makes its own inputs"},
    {"model_max_length", kNoEffect, "Berth truncates no prompt; --max_sequence_tokens"},
    {"name_or_path", kNoEffect, "about the file"},
    {"never_split", kNoEffect, "tokenizer.json says it"},
    {"pad_to_multiple_of", kNoEffect, "Berth pads nothing"},
    {"pad_token_type_id", kNoEffect, "Berth pads nothing"},
    {"padding", kNoEffect, "Berth pads nothing"},
    {"padding_side", kNoEffect, "Berth pads nothing"},
    {"processor_class", kNoEffect, "Berth takes text only"},
    {"remove_space", kNoEffect, "tokenizer.json says it"},
    {"response_schema", kNoEffect, "Berth returns the text as it is"},
    {"response_template", kNoEffect, "Berth returns the text as it is"},
    {"return_token_type_ids", kNoEffect, "Berth makes its own inputs"},
    {"sp_model_kwargs", kNoEffect, "tokenizer.json says it"},
    {"spaces_between_special_tokens", kNoEffect, "of tokenizers in Python"},
    {"special_tokens_map_file", kNoEffect, "about the file"},
    {"stride", kNoEffect, "Berth truncates no prompt"},
    {"strip_accents", kNoEffect, "tokenizer.json says it"},
    {"tokenize_chinese_chars", kNoEffect, "tokenizer.json says it"},
    {"tokenizer_class", kNoEffect, "Berth reads tokenizer.json"},
    {"tokenizer_file", kNoEffect, "Berth reads tokenizer.json"},
    {"transformers_version", kNoEffect, "about the file"},
    {"trim_offsets", kNoEffect, "tokenizer.json says it"},
    {"truncation", kNoEffect, "Berth truncates no prompt"},
    {"truncation_side", kNoEffect, "Berth truncates no prompt"},
    {"truncation_strategy", kNoEffect, "Berth truncates no prompt"},
    {"use_default_system_prompt", kNoEffect, "the chat template says it"},
    {"use_fast", kNoEffect, "Berth reads tokenizer.json"},
    {"verbose", kNoEffect, "about the file"},
};
// clang-format on

// transformers' SPECIAL_TOKENS_ATTRIBUTES, in its order.
constexpr absl::string_view kNamed[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
constexpr absl::string_view kOlderExtra = "additional_special_tokens";
constexpr size_t kMostNames = 16;  // in a warning
constexpr size_t kMostBytes = 64;  // of a name

// The text of a value that is a token: a text, or an object with a content. Null: the value is not a token.
const Json* TextOf(const Json& value) {
  if (value.is_string()) return &value;
  const bool has_text = value.is_object() && value.contains("content") && value["content"].is_string();
  return has_text ? &value["content"] : nullptr;
}

// A token with all its properties, for settings_json. `special`: where it does not say.
Json TokenOf(const Json& value, bool special) {
  const auto flag = [&value](const char* name, bool fallback) {
    return value.is_object() && value.contains(name) && value[name].is_boolean() ? value[name].get<bool>() : fallback;
  };
  const bool is_special = flag("special", special);
  return {{"content", *TextOf(value)},
          {"single_word", flag("single_word", false)},
          {"lstrip", flag("lstrip", false)},
          {"rstrip", flag("rstrip", false)},
          {"normalized", flag("normalized", !is_special)},
          {"special", is_special}};
}

// Collects what the files say.
class Reader {
 public:
  Reader(const Json& config, std::string path) : config_(config), path_(std::move(path)) {}

  // The named tokens, and those that the model has named itself; from the map, all are special.
  void AddNamed(const Json& file) {
    for (const auto& [key, value] : file.items()) {
      if (absl::EndsWith(key, "_token") && TextOf(value) != nullptr) named_[key] = value;
    }
  }

  void AddExtra(const Json& file) {
    for (absl::string_view name : {absl::string_view("extra_special_tokens"), kOlderExtra}) {
      const std::string key(name);
      if (!file.contains(key) || (name == kOlderExtra && !extra_.empty())) continue;
      const Json& tokens = file[key];
      if (!tokens.is_array() && !tokens.is_object()) continue;
      for (const auto& [own_name, value] : tokens.items()) {
        if (TextOf(value) == nullptr) continue;
        if (tokens.is_object()) {
          named_[own_name] = value;
        } else {
          extra_.push_back(value);
        }
      }
      return;
    }
  }

  absl::Status AddDecoder() {
    for (const auto& [key, value] : config_["added_tokens_decoder"].items()) {
      uint32_t id = 0;
      if (!absl::SimpleAtoi(key, &id) || !value.is_object() || TextOf(value) == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(path_, ": added_tokens_decoder: \"",
                                                       absl::Utf8SafeCEscape(key.substr(0, kMostBytes)),
                                                       "\" is not the id of a token with a content"));
      }
      decoder_[id] = TokenOf(value, /*special=*/false);
    }
    return absl::OkStatus();
  }

  absl::Status AddLegacy(const Json& file, const std::string& path) {
    for (const auto& [token, id] : file.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": \"", absl::Utf8SafeCEscape(token.substr(0, kMostBytes)), "\" has no id of a token"));
      }
      Json added = TokenOf(token, IsSpecial(token));
      added["unless_id"] = id;
      decoder_[id.get<uint32_t>()] = std::move(added);
    }
    return absl::OkStatus();
  }

  // In the order in which transformers adds them.
  Json Settings() const {
    Json settings = {{"split_special_tokens", config_.value("split_special_tokens", false)},
                     {"decoder", Json::array()},
                     {"named", Json::array()},
                     {"extra", Json::array()}};
    for (const auto& [id, token] : decoder_) settings["decoder"].push_back(token);
    for (absl::string_view key : kNamed) {
      if (named_.contains(std::string(key))) settings["named"].push_back(TokenOf(named_[std::string(key)], true));
    }
    for (const auto& [key, value] : named_.items()) {
      if (!IsStandard(key)) settings["named"].push_back(TokenOf(value, true));
    }
    for (const Json& value : extra_) settings["extra"].push_back(TokenOf(value, true));
    return settings;
  }

  Json SpecialTokens() const {
    Json texts = Json::object();
    for (const auto& [key, value] : named_.items()) texts[key] = *TextOf(value);
    return texts;
  }

 private:
  static bool IsStandard(absl::string_view key) {
    return std::find(std::begin(kNamed), std::end(kNamed), key) != std::end(kNamed);
  }
  bool IsSpecial(const std::string& token) const {
    const auto is_it = [&token](const Json& value) { return *TextOf(value) == token; };
    return std::any_of(named_.begin(), named_.end(), is_it) || std::any_of(extra_.begin(), extra_.end(), is_it);
  }

  const Json& config_;
  const std::string path_;
  Json named_ = Json::object();
  std::vector<Json> extra_;
  std::map<uint32_t, Json> decoder_;
};

// null says nothing.
Json WithoutNulls(const Json& object) {
  Json kept = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return kept;
}

absl::Status CheckFlags(const Json& config, const std::string& path) {
  for (const char* key : {"split_special_tokens", "clean_up_tokenization_spaces"}) {
    if (!config.contains(key) || config[key].is_boolean()) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", key, " is neither true nor false"));
  }
  if (config.contains("added_tokens_decoder") && !config["added_tokens_decoder"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": added_tokens_decoder is not an object"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ReadJsonObject(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  const std::string text = content.str();
  if (text.empty()) return Json::object();
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(
      absl::StrCat(path, json.is_discarded() ? " is not valid JSON" : " is not a JSON object"));
}

absl::StatusOr<TokenizerConfig> TokenizerConfig::Load(const std::string& model_dir) {
  TokenizerConfig loaded;
  loaded.path_ = model_dir + "/tokenizer_config.json";
  absl::StatusOr<Json> config = ReadJsonObject(loaded.path_);
  if (!config.ok()) return config.status();
  *config = WithoutNulls(*config);
  if (absl::Status status = CheckFlags(*config, loaded.path_); !status.ok()) return status;
  const absl::StatusOr<Json> map = ReadJsonObject(model_dir + "/special_tokens_map.json");
  if (!map.ok()) return map.status();
  const std::string added_path = model_dir + "/added_tokens.json";
  const absl::StatusOr<Json> added = ReadJsonObject(added_path);
  if (!added.ok()) return added.status();

  Reader reader(*config, loaded.path_);
  reader.AddNamed(*config);
  reader.AddExtra(*config);
  absl::Status status;
  if (config->contains("added_tokens_decoder")) {
    status = reader.AddDecoder();
  } else {
    reader.AddNamed(*map);
    reader.AddExtra(*map);
    status = reader.AddLegacy(*added, added_path);
  }
  if (!status.ok()) return status;
  loaded.settings_json_ = reader.Settings().dump();
  loaded.special_tokens_ = std::make_shared<Json>(reader.SpecialTokens());
  loaded.json_ = std::make_shared<Json>(*std::move(config));
  return loaded;
}

std::vector<std::string> TokenizerConfig::Warnings(bool is_bpe,
                                                   const std::function<bool(const std::string&)>& adds) const {
  std::vector<std::string> lines;
  for (const char* name : {"bos_token", "eos_token"}) {
    const std::string key = absl::StrCat("add_", name);
    if (!json_->contains(key) || !(*json_)[key].is_boolean() || !special_tokens_->contains(name)) continue;
    const bool wanted = (*json_)[key].get<bool>();
    if (adds((*special_tokens_)[name].get<std::string>()) == wanted) continue;
    lines.push_back(absl::StrCat(path_, ": ", key, " is ", wanted ? "true" : "false", ", but tokenizer.json ",
                                 wanted ? "adds none" : "adds one",
                                 "; Berth does what tokenizer.json says, as transformers 5"));
  }
  if (json_->value("clean_up_tokenization_spaces", false) && !is_bpe) {
    lines.push_back(absl::StrCat(path_, ": clean_up_tokenization_spaces is true; Berth leaves the text as it is"));
  }
  std::vector<std::string> unknown;
  for (const auto& [key, value] : json_->items()) {
    const auto is_it = [&name = key](const Field& field) { return field.name == name; };
    if (absl::EndsWith(key, "_token") || std::any_of(std::begin(kFields), std::end(kFields), is_it)) continue;
    unknown.push_back(absl::StrCat("\"", absl::Utf8SafeCEscape(key.substr(0, kMostBytes)), "\""));
  }
  const bool cut = unknown.size() > kMostNames;
  if (cut) unknown.resize(kMostNames);
  if (!unknown.empty()) {
    lines.push_back(
        absl::StrCat(path_, ": Berth does not know these fields: ", absl::StrJoin(unknown, ", "), cut ? ", ..." : ""));
  }
  return lines;
}

}  // namespace berth
