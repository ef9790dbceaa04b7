#include "models/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/checkpoint/generation_fields.h"

namespace berth {
namespace {

constexpr int64_t kMaxTokenId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLength = int64_t{1} << 40;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 256;

// Where the fields are: in generation_config.json alone, or in config.json and its text_config.
class Source {
 public:
  Source(ConfigReader outer, ConfigReader inner) : outer_(std::move(outer)), inner_(std::move(inner)) {}

  ConfigReader& Of(absl::string_view key) { return outer_.Has(key) || !inner_.Has(key) ? outer_ : inner_; }

  std::optional<float> Float(absl::string_view key, double min, double max) {
    if (!Of(key).Has(key)) return std::nullopt;
    return static_cast<float>(Of(key).Double(key, min, max));
  }
  std::optional<int64_t> Int(absl::string_view key, int64_t min, int64_t max) {
    if (!Of(key).Has(key)) return std::nullopt;
    return Of(key).Int(key, min, max);
  }

 private:
  ConfigReader outer_;
  ConfigReader inner_;
};

// First-found of a token id in `sources`. Some files write -1 for none.
std::optional<int32_t> OptionalToken(std::vector<ConfigReader*> sources, absl::string_view key) {
  for (ConfigReader* r : sources) {
    const int64_t id = r->IntOr(key, -1, -1, kMaxTokenId);
    if (id >= 0) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

// First-found of one id or a list of them; ascending, distinct.
std::vector<int32_t> TokenList(std::vector<ConfigReader*> sources, absl::string_view key) {
  std::vector<int32_t> result;
  for (ConfigReader* r : sources) {
    for (int64_t id : r->IntOrIntList(key, -1, kMaxTokenId)) {
      if (id >= 0) result.push_back(static_cast<int32_t>(id));
    }
    if (!result.empty()) break;
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::vector<int32_t> Tokens(const std::vector<int64_t>& ids) { return std::vector<int32_t>(ids.begin(), ids.end()); }

void ReadSampling(Source& s, GenerationDefaults* d) {
  const float max = std::numeric_limits<float>::max();
  d->temperature = s.Float("temperature", 0, max);
  d->top_p = s.Float("top_p", 0, 1);
  d->min_p = s.Float("min_p", 0, 1);
  d->repetition_penalty = s.Float("repetition_penalty", std::numeric_limits<float>::min(), max);
  // vLLM's files write -1 for all tokens.
  if (const auto top_k = s.Int("top_k", -1, kMaxTokenId); top_k.has_value()) {
    d->top_k = static_cast<int32_t>(std::max<int64_t>(0, *top_k));
  }
  d->do_sample = s.Of("do_sample").BoolOr("do_sample", false);
}

void ReadLengths(Source& s, GenerationDefaults* d) {
  d->max_new_tokens = s.Int("max_new_tokens", 1, kMaxLength);
  d->max_length = s.Int("max_length", 1, kMaxLength);
  d->min_new_tokens = s.Int("min_new_tokens", 0, kMaxLength);
  d->min_length = s.Int("min_length", 0, kMaxLength);
  ConfigReader& r = s.Of("stop_strings");
  if (!r.Has("stop_strings")) return;
  d->stop_strings = r.StringOrStringList("stop_strings");
  r.Require(d->stop_strings.size() <= kMaxStopStrings, "stop_strings", "has over 16 strings");
  for (const std::string& stop : d->stop_strings) {
    r.Require(!stop.empty() && stop.size() <= kMaxStopBytes, "stop_strings", "has a string outside [1, 256] bytes");
  }
}

void ReadBeams(Source& s, GenerationDefaults* d) {
  if (const int64_t beams = s.Int("num_beams", 1, 1 << 20).value_or(1); beams > 1) {
    d->num_beams = static_cast<int32_t>(beams);
  }
  ConfigReader& penalty = s.Of("length_penalty");
  if (penalty.Has("length_penalty")) d->length_penalty = penalty.Double("length_penalty", -10, 10);
  ConfigReader& early = s.Of("early_stopping");
  if (early.Is("early_stopping", absl::string_view("never"))) {
    d->early_stopping = 2;
  } else {
    d->early_stopping = early.BoolOr("early_stopping", false) ? 1 : 0;
  }
}

// sequence_bias, those of one token first; and bad_words_ids but single end tokens. As SequenceBiasLogitsProcessor and
// NoBadWordsLogitsProcessor of transformers keep them.
std::vector<TokenRules::Bias> ReadBiases(Source& s, const std::vector<int32_t>& eos_token_ids) {
  std::vector<TokenRules::Bias> biases;
  std::vector<double> numbers;
  const auto sequences = s.Of("sequence_bias").IntLists("sequence_bias", 0, kMaxTokenId, &numbers);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const float bias = static_cast<float>(numbers[i]);
    s.Of("sequence_bias")
        .Require(bias < std::numeric_limits<float>::infinity(), "sequence_bias", "has an infinite bias");
    const std::vector<int32_t> tokens = Tokens(sequences[i]);
    const auto same = std::find_if(biases.begin(), biases.end(), [&](const auto& b) { return b.tokens == tokens; });
    if (same != biases.end()) {
      same->bias = bias;
    } else {
      biases.push_back({tokens, bias});
    }
  }
  std::stable_partition(biases.begin(), biases.end(), [](const auto& b) { return b.tokens.size() == 1; });
  for (const std::vector<int64_t>& word : s.Of("bad_words_ids").IntLists("bad_words_ids", 0, kMaxTokenId)) {
    const bool ends = word.size() == 1 && std::count(eos_token_ids.begin(), eos_token_ids.end(), word[0]) > 0;
    if (!ends) biases.push_back({Tokens(word), -std::numeric_limits<float>::infinity()});
  }
  return biases;
}

void ReadRules(Source& s, GenerationDefaults* d) {
  TokenRules& rules = d->rules;
  const auto size = [&](absl::string_view key) {
    return static_cast<int32_t>(s.Int(key, 0, kMaxNgramSize).value_or(0));
  };
  rules.no_repeat_ngram_size = size("no_repeat_ngram_size");
  rules.no_repeat_input_ngram_size = size("encoder_no_repeat_ngram_size");
  rules.suppressed = Tokens(s.Of("suppress_tokens").IntListOr("suppress_tokens", {}, -1, kMaxTokenId));
  rules.suppressed_first =
      Tokens(s.Of("begin_suppress_tokens").IntListOr("begin_suppress_tokens", {}, -1, kMaxTokenId));
  rules.biases = ReadBiases(s, d->eos_token_ids);
  // transformers suppresses after it forces.
  const auto is_suppressed = [&](int32_t token) {
    return std::count(rules.suppressed.begin(), rules.suppressed.end(), token) > 0;
  };
  ConfigReader& r = s.Of("suppress_tokens");
  const bool bos = d->forced_bos_token_id.has_value() && is_suppressed(*d->forced_bos_token_id);
  r.Require(!bos, "suppress_tokens", "has the token of forced_bos_token_id");
  const bool any = !d->forced_eos_token_ids.empty();
  std::erase_if(d->forced_eos_token_ids, is_suppressed);
  r.Require(!any || !d->forced_eos_token_ids.empty(), "suppress_tokens", "has all tokens of forced_eos_token_id");
}

}  // namespace

std::vector<std::string> EndTokenWarnings(const std::vector<int32_t>& eos_token_ids, int64_t vocab_size) {
  std::vector<std::string> warnings;
  for (int32_t token : eos_token_ids) {
    if (token < vocab_size) continue;
    warnings.push_back(absl::StrCat("eos_token_id of generation_config.json or config.json: ", token,
                                    " is outside the vocabulary of ", vocab_size, " tokens and ignored"));
  }
  if (!warnings.empty() && warnings.size() == eos_token_ids.size()) {
    warnings.push_back(
        "eos_token_id of generation_config.json or config.json: no end token is left, so outputs end "
        "only at max_tokens or a stop of the request");
  }
  return warnings;
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& model_dir, const JsonConfig& config,
                                                          std::vector<std::string>* warnings) {
  const std::filesystem::path path = std::filesystem::path(model_dir) / "generation_config.json";
  std::error_code error;
  const bool has_file = std::filesystem::exists(path, error);
  const absl::StatusOr<JsonConfig> generation = has_file ? JsonConfig::Create(path.string()) : config;
  if (!generation.ok()) return generation.status();
  if (absl::Status status = RefuseGenerationFields(*generation); !status.ok()) return status;

  ConfigReader r(*generation);
  ConfigReader model(config);
  ConfigReader text = model.ObjectOr("text_config");
  Source source(r, has_file ? r : text);

  GenerationDefaults d;
  d.eos_token_ids = TokenList({&r, &model, &text}, "eos_token_id");
  d.bos_token_id = OptionalToken({&r, &model, &text}, "bos_token_id");
  d.pad_token_id = OptionalToken({&r, &model, &text}, "pad_token_id");
  // A file that has a BOS and no start token means that BOS, as in transformers.
  d.decoder_start_token_id = OptionalToken({&r}, "decoder_start_token_id");
  if (!d.decoder_start_token_id.has_value()) d.decoder_start_token_id = OptionalToken({&r}, "bos_token_id");
  if (!d.decoder_start_token_id.has_value()) {
    d.decoder_start_token_id = OptionalToken({&model}, "decoder_start_token_id");
  }
  if (!d.decoder_start_token_id.has_value()) d.decoder_start_token_id = d.bos_token_id;
  d.forced_bos_token_id = OptionalToken({&source.Of("forced_bos_token_id")}, "forced_bos_token_id");
  d.forced_eos_token_ids = TokenList({&source.Of("forced_eos_token_id")}, "forced_eos_token_id");
  // What BART's first configurations said instead.
  if (!has_file && model.BoolOr("force_bos_token_to_be_generated", false)) d.forced_bos_token_id = d.bos_token_id;
  ReadSampling(source, &d);
  ReadLengths(source, &d);
  ReadBeams(source, &d);
  ReadRules(source, &d);
  if (!r.status().ok()) return r.status();
  if (!model.status().ok()) return model.status();
  for (std::string& line : GenerationFieldWarnings(*generation, /*names_unknown=*/has_file)) {
    warnings->push_back(std::move(line));
  }
  return d;
}

}  // namespace berth
