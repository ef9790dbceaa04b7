// A model's config.json, and a typed, validating reader over it for family code. Torch-free. JsonConfig is immutable
// and thread-safe; a ConfigReader belongs to one thread.
//
//   absl::StatusOr<FalconConfig> Read(const JsonConfig& json) {
//     ConfigReader r(json);
//     FalconConfig c;
//     c.hidden_size = r.Int("hidden_size", 1, 1 << 20);
//     c.num_kv_heads = r.IntOr("num_key_value_heads", c.num_heads, 1, 4096);
//     c.time_step_limit = r.DoubleListOr("time_step_limit", {0, INFINITY});
//     r.RefuseUnless("hidden_act", "silu", "swish");
//     r.Require(c.num_heads % c.num_kv_heads == 0, "num_attention_heads", "must be a multiple of num_key_value_heads");
//     if (!r.status().ok()) return r.status();
//     return c;
//   }
#ifndef BERTH_MODELS_CHECKPOINT_JSON_CONFIG_H_
#define BERTH_MODELS_CHECKPOINT_JSON_CONFIG_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

class JsonConfig {
 public:
  // At most 16 MiB, nested at most 32 deep. FAILED_PRECONDITION: cannot be read; INVALID_ARGUMENT: no JSON object.
  static absl::StatusOr<JsonConfig> Create(const std::string& path);
  // `what` names the source in errors.
  static absl::StatusOr<JsonConfig> Parse(absl::string_view text, std::string what);

  const std::string& name() const { return what_; }
  // For models/checkpoint/ only, where a table of fields is walked; others use a ConfigReader.
  const nlohmann::json& value() const { return *json_; }

 private:
  friend class ConfigReader;
  JsonConfig(std::shared_ptr<const nlohmann::json> json, std::string what);

  std::shared_ptr<const nlohmann::json> json_;
  std::string what_;
};

// Reads fields and keeps the first error, so that a family reads all its fields in a row and asks once.
//  - null counts as absent everywhere.
//  - A getter without `Or` needs its key; `Or` takes the fallback, unchecked, where the key is absent.
//  - After an error a getter still returns a value in range (its minimum or fallback): arithmetic is safe until
//    status() is asked.
//  - Ranges are inclusive. Integers must be written as integers; numbers may be, and may be infinite (Python's
//    `Infinity`, transformers' {"__float__": "Infinity"}) where the range allows; NaN never.
//  - Errors are INVALID_ARGUMENT: `config.json: num_hidden_layers: -3 is outside [1, 1024]`; nested fields are written
//    `text_config.hidden_size`. What is valid but not implemented is FAILED_PRECONDITION.
class ConfigReader {
 public:
  static constexpr double kAny = std::numeric_limits<double>::infinity();
  using Literal = std::variant<bool, int64_t, double, absl::string_view>;

  explicit ConfigReader(const JsonConfig& config);

  // The first error of this reader, of its parent, and of every reader that came from them.
  const absl::Status& status() const { return shared_->status; }

  bool Has(absl::string_view key) const { return Find(key) != nullptr; }
  // Whether the key is there with the value null, for the few fields where that is not the same as absent.
  bool IsNull(absl::string_view key) const;
  bool Is(absl::string_view key, const Literal& value) const;

  int64_t Int(absl::string_view key, int64_t min, int64_t max);
  int64_t IntOr(absl::string_view key, int64_t fallback, int64_t min, int64_t max);
  // An integer; the text "auto" or nothing: `automatic`.
  int64_t IntOrAuto(absl::string_view key, int64_t automatic, int64_t min, int64_t max);
  double Double(absl::string_view key, double min = -kAny, double max = kAny);
  double DoubleOr(absl::string_view key, double fallback, double min = -kAny, double max = kAny);
  bool BoolOr(absl::string_view key, bool fallback);
  std::string String(absl::string_view key);
  std::string StringOr(absl::string_view key, absl::string_view fallback);

  // At most 65536 elements.
  std::vector<int64_t> IntList(absl::string_view key, int64_t min, int64_t max);
  std::vector<int64_t> IntListOr(absl::string_view key, std::vector<int64_t> fallback, int64_t min, int64_t max);
  std::vector<double> DoubleListOr(absl::string_view key, std::vector<double> fallback, double min = -kAny,
                                   double max = kAny);
  std::vector<std::string> StringListOr(absl::string_view key, std::vector<std::string> fallback);
  // One string or a list of them (stop_strings); absent: empty.
  std::vector<std::string> StringOrStringList(absl::string_view key);
  // One integer or a list of them (eos_token_id); absent: empty.
  std::vector<int64_t> IntOrIntList(absl::string_view key, int64_t min, int64_t max);
  // A list of lists of integers, none of them empty (bad_words_ids). With `numbers` each element is a list and a number
  // (sequence_bias), which are added there. Absent: empty.
  std::vector<std::vector<int64_t>> IntLists(absl::string_view key, int64_t min, int64_t max,
                                             std::vector<double>* numbers = nullptr);

  // A reader of a nested object; it shares this one's first error. Absent: an error, and a reader of {}.
  ConfigReader Object(absl::string_view key);
  // Absent: a reader of {}.
  ConfigReader ObjectOr(absl::string_view key);

  // From now on `key` is what `outer` says of it, absent where it is absent there.
  void TakeFrom(const ConfigReader& outer, std::string key);

  // For values that change the mathematics: absent, or one of `allowed`, or FAILED_PRECONDITION naming field, value
  // and what is implemented. The default that an absent key means must be among what the family implements.
  template <typename... T>
  void RefuseUnless(absl::string_view key, T... allowed) {
    RefuseUnlessIn(key, {Literal(allowed)...});
  }

  // INVALID_ARGUMENT `<file>: <key>: <value> <what>` unless `ok`; for what one getter cannot check.
  void Require(bool ok, absl::string_view key, absl::string_view what);

 private:
  struct Shared {
    std::shared_ptr<const nlohmann::json> root;
    std::string what;
    absl::Status status;
  };
  ConfigReader(std::shared_ptr<Shared> shared, const nlohmann::json* json, std::string path);

  const nlohmann::json* Find(absl::string_view key) const;
  const nlohmann::json* FindOrFail(absl::string_view key);
  void Fail(absl::string_view key, absl::string_view message,
            absl::StatusCode code = absl::StatusCode::kInvalidArgument);
  void RefuseUnlessIn(absl::string_view key, std::initializer_list<Literal> allowed);
  int64_t AsInt(absl::string_view key, const nlohmann::json& value, int64_t min, int64_t max);
  double AsDouble(absl::string_view key, const nlohmann::json& value, double min, double max);
  std::string AsString(absl::string_view key, const nlohmann::json& value);
  // Calls `visit` with each element and its name, "key[2]".
  void ForEach(absl::string_view key, const nlohmann::json& list,
               const std::function<void(absl::string_view, const nlohmann::json&)>& visit);

  std::shared_ptr<Shared> shared_;
  const nlohmann::json* json_;  // within shared_->root, or the empty object
  std::string path_;            // "", or "text_config."
  std::string outer_key_;       // of TakeFrom
  std::shared_ptr<ConfigReader> outer_;
};

}  // namespace berth

#endif  // BERTH_MODELS_CHECKPOINT_JSON_CONFIG_H_
