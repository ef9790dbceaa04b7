#include "models/checkpoint/json_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bounded_json.h"

namespace berth {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxListSize = 65536;

const json& EmptyObject() {
  static const json* const empty = new json(json::object());
  return *empty;
}

// Whether `value` is a number, plain or as transformers tags those that JSON lacks.
bool ToDouble(const json& value, double* number) {
  if (value.is_number()) {
    *number = value.get<double>();
    return true;
  }
  if (!value.is_object() || value.size() != 1 || !value.contains("__float__")) return false;
  const json& tag = value["__float__"];
  if (tag == "Infinity")
    *number = INFINITY;
  else if (tag == "-Infinity")
    *number = -INFINITY;
  else if (tag == "NaN")
    *number = NAN;
  else
    return false;
  return true;
}

bool ToInt(const json& value, int64_t* number) {
  if (!value.is_number_integer()) return false;
  // What is over int64 saturates: it is outside any range that a caller gives.
  if (value.is_number_unsigned()) {
    *number = static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX));
  } else {
    *number = value.get<int64_t>();
  }
  return true;
}

bool Equals(const json& value, const ConfigReader::Literal& literal) {
  if (const auto* text = std::get_if<absl::string_view>(&literal)) {
    return value.is_string() && value.get_ref<const std::string&>() == *text;
  }
  if (const auto* flag = std::get_if<bool>(&literal)) return value.is_boolean() && value.get<bool>() == *flag;
  double number = 0;
  if (!ToDouble(value, &number)) return false;
  if (const auto* integer = std::get_if<int64_t>(&literal)) return number == static_cast<double>(*integer);
  return number == std::get<double>(literal);
}

std::string Text(const ConfigReader::Literal& literal) {
  if (const auto* text = std::get_if<absl::string_view>(&literal)) return ShortQuote(*text);
  if (const auto* flag = std::get_if<bool>(&literal)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&literal)) return absl::StrCat(*integer);
  return absl::StrCat(std::get<double>(literal));
}

}  // namespace

JsonConfig::JsonConfig(std::shared_ptr<const json> json, std::string what)
    : json_(std::move(json)), what_(std::move(what)) {}

absl::StatusOr<JsonConfig> JsonConfig::Create(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return Parse(*text, std::filesystem::path(path).filename().string());
}

absl::StatusOr<JsonConfig> JsonConfig::Parse(absl::string_view text, std::string what) {
  auto parsed = std::make_shared<json>();
  const JsonLimits limits = {.max_bytes = kMaxConfigBytes, .python_floats = true};
  if (absl::Status status = ParseJsonObject(text, what, limits, parsed.get()); !status.ok()) return status;
  return JsonConfig(std::move(parsed), std::move(what));
}

ConfigReader::ConfigReader(const JsonConfig& config)
    : shared_(std::make_shared<Shared>(Shared{config.json_, config.what_, absl::OkStatus()})),
      json_(shared_->root.get()) {}

ConfigReader::ConfigReader(std::shared_ptr<Shared> shared, const json* json, std::string path)
    : shared_(std::move(shared)), json_(json), path_(std::move(path)) {}

void ConfigReader::TakeFrom(const ConfigReader& outer, std::string key) {
  outer_ = std::make_shared<ConfigReader>(outer);
  outer_key_ = std::move(key);
}

bool ConfigReader::IsNull(absl::string_view key) const {
  if (outer_ != nullptr && key == outer_key_) return outer_->IsNull(key);
  const auto it = json_->find(std::string(key));
  return it != json_->end() && it->is_null();
}

bool ConfigReader::Is(absl::string_view key, const Literal& literal) const {
  const json* value = Find(key);
  return value != nullptr && Equals(*value, literal);
}

const json* ConfigReader::Find(absl::string_view key) const {
  if (outer_ != nullptr && key == outer_key_) return outer_->Find(key);
  const auto it = json_->find(std::string(key));
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

const json* ConfigReader::FindOrFail(absl::string_view key) {
  const json* value = Find(key);
  if (value == nullptr) Fail(key, "is required, is absent");
  return value;
}

void ConfigReader::Fail(absl::string_view key, absl::string_view message, absl::StatusCode code) {
  if (outer_ != nullptr && key == outer_key_) return outer_->Fail(key, message, code);
  if (!shared_->status.ok()) return;
  shared_->status = absl::Status(code, absl::StrCat(shared_->what, ": ", path_, key, ": ", message));
}

int64_t ConfigReader::AsInt(absl::string_view key, const json& value, int64_t min, int64_t max) {
  int64_t number = 0;
  if (!ToInt(value, &number)) {
    Fail(key, absl::StrCat(ShortDump(value), " is not an integer"));
    return min;
  }
  if (number < min || number > max) {
    Fail(key, absl::StrCat(ShortDump(value), " is outside [", min, ", ", max, "]"));
    return min;
  }
  return number;
}

double ConfigReader::AsDouble(absl::string_view key, const json& value, double min, double max) {
  const double in_range = std::clamp(0.0, min, max);
  double number = 0;
  if (!ToDouble(value, &number) || std::isnan(number)) {
    Fail(key, absl::StrCat(ShortDump(value), " is not a number"));
    return in_range;
  }
  if (number < min || number > max) {
    Fail(key, absl::StrCat(ShortDump(value), " is outside [", min, ", ", max, "]"));
    return in_range;
  }
  return number;
}

std::string ConfigReader::AsString(absl::string_view key, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  Fail(key, absl::StrCat(ShortDump(value), " is not a string"));
  return "";
}

void ConfigReader::ForEach(absl::string_view key, const json& list,
                           const std::function<void(absl::string_view, const json&)>& visit) {
  if (!list.is_array()) return Fail(key, absl::StrCat(ShortDump(list), " is not a list"));
  if (list.size() > kMaxListSize) {
    return Fail(key, absl::StrCat(list.size(), " elements are over the limit of ", kMaxListSize));
  }
  for (size_t i = 0; i < list.size(); ++i) visit(absl::StrCat(key, "[", i, "]"), list[i]);
}

int64_t ConfigReader::Int(absl::string_view key, int64_t min, int64_t max) {
  const json* value = FindOrFail(key);
  return value == nullptr ? min : AsInt(key, *value, min, max);
}

int64_t ConfigReader::IntOr(absl::string_view key, int64_t fallback, int64_t min, int64_t max) {
  return Has(key) ? Int(key, min, max) : fallback;
}

int64_t ConfigReader::IntOrAuto(absl::string_view key, int64_t automatic, int64_t min, int64_t max) {
  const json* value = Find(key);
  const bool is_auto = value != nullptr && value->is_string() && value->get_ref<const std::string&>() == "auto";
  return is_auto ? automatic : IntOr(key, automatic, min, max);
}

double ConfigReader::Double(absl::string_view key, double min, double max) {
  const json* value = FindOrFail(key);
  return value == nullptr ? std::clamp(0.0, min, max) : AsDouble(key, *value, min, max);
}

double ConfigReader::DoubleOr(absl::string_view key, double fallback, double min, double max) {
  return Has(key) ? Double(key, min, max) : fallback;
}

bool ConfigReader::BoolOr(absl::string_view key, bool fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, absl::StrCat(ShortDump(*value), " is not true or false"));
  return false;
}

std::string ConfigReader::String(absl::string_view key) {
  const json* value = FindOrFail(key);
  return value == nullptr ? "" : AsString(key, *value);
}

std::string ConfigReader::StringOr(absl::string_view key, absl::string_view fallback) {
  return Has(key) ? String(key) : std::string(fallback);
}

std::vector<int64_t> ConfigReader::IntList(absl::string_view key, int64_t min, int64_t max) {
  std::vector<int64_t> result;
  if (const json* value = FindOrFail(key)) {
    ForEach(key, *value, [&](absl::string_view name, const json& x) { result.push_back(AsInt(name, x, min, max)); });
  }
  return result;
}

std::vector<int64_t> ConfigReader::IntListOr(absl::string_view key, std::vector<int64_t> fallback, int64_t min,
                                             int64_t max) {
  return Has(key) ? IntList(key, min, max) : std::move(fallback);
}

std::vector<double> ConfigReader::DoubleListOr(absl::string_view key, std::vector<double> fallback, double min,
                                               double max) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  std::vector<double> result;
  ForEach(key, *value, [&](absl::string_view name, const json& x) { result.push_back(AsDouble(name, x, min, max)); });
  return result;
}

std::vector<std::string> ConfigReader::StringListOr(absl::string_view key, std::vector<std::string> fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  std::vector<std::string> result;
  ForEach(key, *value, [&](absl::string_view name, const json& x) { result.push_back(AsString(name, x)); });
  return result;
}

std::vector<std::string> ConfigReader::StringOrStringList(absl::string_view key) {
  const json* value = Find(key);
  return value != nullptr && value->is_string() ? std::vector<std::string>{AsString(key, *value)}
                                                : StringListOr(key, {});
}

std::vector<int64_t> ConfigReader::IntOrIntList(absl::string_view key, int64_t min, int64_t max) {
  const json* value = Find(key);
  if (value == nullptr) return {};
  if (value->is_array()) return IntList(key, min, max);
  return {AsInt(key, *value, min, max)};
}

std::vector<std::vector<int64_t>> ConfigReader::IntLists(absl::string_view key, int64_t min, int64_t max,
                                                         std::vector<double>* numbers) {
  std::vector<std::vector<int64_t>> lists;
  const json* value = Find(key);
  if (value == nullptr) return lists;
  ForEach(key, *value, [&](absl::string_view name, const json& element) {
    const json* list = &element;
    if (numbers != nullptr) {
      if (!element.is_array() || element.size() != 2) return Fail(name, "is not a list and a number");
      list = &element[0];
      numbers->push_back(AsDouble(name, element[1], -kAny, kAny));
    }
    std::vector<int64_t>& added = lists.emplace_back();
    ForEach(name, *list, [&](absl::string_view at, const json& x) { added.push_back(AsInt(at, x, min, max)); });
    if (added.empty()) Fail(name, absl::StrCat(ShortDump(element), " is empty"));
  });
  return lists;
}

ConfigReader ConfigReader::Object(absl::string_view key) {
  const json* value = FindOrFail(key);
  if (value != nullptr && !value->is_object()) {
    Fail(key, absl::StrCat(ShortDump(*value), " is not an object"));
    value = nullptr;
  }
  return ConfigReader(shared_, value == nullptr ? &EmptyObject() : value, absl::StrCat(path_, key, "."));
}

ConfigReader ConfigReader::ObjectOr(absl::string_view key) {
  if (Has(key)) return Object(key);
  return ConfigReader(shared_, &EmptyObject(), absl::StrCat(path_, key, "."));
}

void ConfigReader::RefuseUnlessIn(absl::string_view key, std::initializer_list<Literal> allowed) {
  const json* value = Find(key);
  if (value == nullptr) return;
  std::vector<std::string> texts;
  for (const Literal& literal : allowed) {
    if (Equals(*value, literal)) return;
    texts.push_back(Text(literal));
  }
  Fail(key, absl::StrCat(ShortDump(*value), " is not implemented; implemented: ", absl::StrJoin(texts, ", ")),
       absl::StatusCode::kFailedPrecondition);
}

void ConfigReader::Require(bool ok, absl::string_view key, absl::string_view what) {
  if (ok) return;
  const json* value = Find(key);
  Fail(key, absl::StrCat(value == nullptr ? "(absent)" : ShortDump(*value), " ", what));
}

}  // namespace berth
