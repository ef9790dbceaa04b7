// How the value of a flag is read from text, checked against its limits, and written as text. Thread-compatible.
//
// Bind() ties a variable to one of these kinds of value:
//   "n"                      any value of the variable's type; the text stands for the value in the help
//   Between(1, 64)           a number or duration within these limits
//   AtLeast(1)               a number or duration without an upper limit
//   Bytes(), Bytes("auto")   a size such as 512MiB, in an int64_t; the word stands for 0, which is refused without it
//   OrAuto(Between(1, 64))   one of the kinds, or "auto", in a std::optional: nothing
//   OneOf({"text", "json"})  one of these words; OneOf<T>({{"vllm", true}, {"none", false}}) for other types
//
// To add a type: declare ParseFlagValue and FormatFlagValue for it, in the namespace of the type.
#ifndef BERTH_FLAGS_FLAG_VALUE_H_
#define BERTH_FLAGS_FLAG_VALUE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "flags/units.h"

namespace berth {

// INVALID_ARGUMENT: "`text` `why`", where `why` is, for example, "is not a whole number".
absl::Status RefuseValue(absl::string_view text, absl::string_view why);

// Reads `text` into `*value`. Errors are RefuseValue's.
absl::Status ParseFlagValue(absl::string_view text, bool* value);
absl::Status ParseFlagValue(absl::string_view text, int32_t* value);
absl::Status ParseFlagValue(absl::string_view text, int64_t* value);
absl::Status ParseFlagValue(absl::string_view text, uint32_t* value);
absl::Status ParseFlagValue(absl::string_view text, uint64_t* value);
absl::Status ParseFlagValue(absl::string_view text, float* value);
absl::Status ParseFlagValue(absl::string_view text, double* value);
absl::Status ParseFlagValue(absl::string_view text, std::string* value);
absl::Status ParseFlagValue(absl::string_view text, absl::Duration* value);
absl::Status ParseFlagValue(absl::string_view text, Address* value);
// Adds to the list: such a flag may be repeated.
absl::Status ParseFlagValue(absl::string_view text, std::vector<std::string>* value);

// What ParseFlagValue reads.
std::string FormatFlagValue(bool value);
std::string FormatFlagValue(int64_t value);
inline std::string FormatFlagValue(int32_t value) { return absl::StrCat(value); }
inline std::string FormatFlagValue(uint32_t value) { return absl::StrCat(value); }
inline std::string FormatFlagValue(uint64_t value) { return absl::StrCat(value); }
inline std::string FormatFlagValue(double value) { return absl::StrCat(value); }
inline std::string FormatFlagValue(const std::string& value) { return value; }
std::string FormatFlagValue(absl::Duration value);
inline std::string FormatFlagValue(const Address& value) { return value.ToString(); }
std::string FormatFlagValue(const std::vector<std::string>& value);

// A variable seen as text.
struct FlagBinding {
  std::function<absl::Status(absl::string_view)> parse;
  std::function<std::string()> format;  // the value that the variable has now; "": none
  std::string placeholder;              // stands for the value in the help
  std::string limits;                   // "1 to 64"; "": none
  bool is_bool = false;                 // the name alone means true
};

namespace flag_internal {

template <typename T>
struct OptionalTraits {
  using Value = T;
  static constexpr bool kIsOptional = false;
};
template <typename T>
struct OptionalTraits<std::optional<T>> {
  using Value = T;
  static constexpr bool kIsOptional = true;
};
template <typename T>
using ValueOf = typename OptionalTraits<T>::Value;

// Reads with `parse`. The variable keeps its value when the text is refused. An optional address may be empty: none.
template <typename T, typename Parse>
absl::Status Assign(absl::string_view text, T* variable, const Parse& parse) {
  if constexpr (OptionalTraits<T>::kIsOptional && std::is_same_v<ValueOf<T>, Address>) {
    if (text.empty()) {
      variable->reset();
      return absl::OkStatus();
    }
  }
  ValueOf<T> value{};
  if constexpr (!OptionalTraits<T>::kIsOptional) value = *variable;
  if (absl::Status s = parse(text, &value); !s.ok()) return s;
  *variable = std::move(value);
  return absl::OkStatus();
}

template <typename T, typename Format>
std::string FormatVariable(const T& variable, const Format& format) {
  if constexpr (OptionalTraits<T>::kIsOptional) {
    return variable ? format(*variable) : "";
  } else {
    return format(variable);
  }
}

template <typename T, typename Parse, typename Format>
FlagBinding MakeBinding(T* variable, Parse parse, Format format) {
  return {
      .parse = [variable, parse = std::move(parse)](absl::string_view text) { return Assign(text, variable, parse); },
      .format = [variable, format = std::move(format)] { return FormatVariable(*variable, format); },
      .placeholder = "",
      .limits = "",
      .is_bool = std::is_same_v<ValueOf<T>, bool>};
}

absl::Status ParseBytes(absl::string_view text, const std::string& zero, int64_t* value);
std::string FormatBytes(int64_t value, const std::string& zero);

}  // namespace flag_internal

template <typename T>
struct FlagLimits {
  T least;
  std::optional<T> most;

  std::string ToString() const {
    return most ? absl::StrCat(FormatFlagValue(least), " to ", FormatFlagValue(*most))
                : absl::StrCat(FormatFlagValue(least), " or more");
  }
};
template <typename T>
FlagLimits<T> Between(T least, T most) {
  return {least, most};
}
template <typename T>
FlagLimits<T> AtLeast(T least) {
  return {least, std::nullopt};
}

struct FlagBytes {
  std::string zero;
};
inline FlagBytes Bytes(absl::string_view zero = "") { return {std::string(zero)}; }

template <typename T>
struct FlagChoices {
  std::vector<std::pair<std::string, T>> choices;
};
template <typename T>
FlagChoices<T> OneOf(std::vector<std::pair<std::string, T>> choices) {
  return {std::move(choices)};
}
inline FlagChoices<std::string> OneOf(const std::vector<std::string>& words) {
  FlagChoices<std::string> choices;
  for (const std::string& word : words) choices.choices.emplace_back(word, word);
  return choices;
}

template <typename T>
FlagBinding Bind(absl::string_view placeholder, T* variable) {
  FlagBinding binding = flag_internal::MakeBinding(
      variable, [](absl::string_view text, auto* value) { return ParseFlagValue(text, value); },
      [](const auto& value) { return FormatFlagValue(value); });
  binding.placeholder = std::string(placeholder);
  return binding;
}

template <typename L, typename T>
FlagBinding Bind(const FlagLimits<L>& limits, T* variable) {
  const auto parse = [limits](absl::string_view text, auto* value) {
    if (absl::Status s = ParseFlagValue(text, value); !s.ok()) return s;
    using V = std::remove_reference_t<decltype(*value)>;
    // Written so that a NaN is outside too.
    if (*value >= static_cast<V>(limits.least) && (!limits.most || *value <= static_cast<V>(*limits.most))) {
      return absl::OkStatus();
    }
    return RefuseValue(text, absl::StrCat("is outside the range ", limits.ToString()));
  };
  FlagBinding binding =
      flag_internal::MakeBinding(variable, parse, [](const auto& value) { return FormatFlagValue(value); });
  binding.placeholder = std::string(std::is_same_v<L, absl::Duration> ? "time" : "n");
  binding.limits = limits.ToString();
  return binding;
}

inline FlagBinding Bind(const FlagBytes& bytes, int64_t* variable) {
  FlagBinding binding = flag_internal::MakeBinding(
      variable,
      [zero = bytes.zero](absl::string_view text, int64_t* value) {
        return flag_internal::ParseBytes(text, zero, value);
      },
      [zero = bytes.zero](int64_t value) { return flag_internal::FormatBytes(value, zero); });
  binding.placeholder = "size";
  return binding;
}

template <typename C, typename T>
FlagBinding Bind(const FlagChoices<C>& choices, T* variable) {
  const auto parse = [choices](absl::string_view text, C* value) {
    std::vector<std::string> words;
    for (const auto& [word, choice] : choices.choices) {
      if (text == word) {
        *value = choice;
        return absl::OkStatus();
      }
      words.push_back(word);
    }
    return RefuseValue(text, absl::StrCat("is not one of ", absl::StrJoin(words, ", ")));
  };
  const auto format = [choices](const C& value) {
    for (const auto& [word, choice] : choices.choices) {
      if (choice == value) return word;
    }
    return std::string();
  };
  FlagBinding binding = flag_internal::MakeBinding(variable, parse, format);
  binding.placeholder = absl::StrJoin(choices.choices, "|",
                                      [](std::string* out, const auto& choice) { absl::StrAppend(out, choice.first); });
  binding.is_bool = false;  // a word is always needed
  return binding;
}

template <typename Kind>
struct FlagOrAuto {
  Kind kind;
};
template <typename Kind>
FlagOrAuto<Kind> OrAuto(Kind kind) {
  return {std::move(kind)};
}

template <typename Kind, typename T>
FlagBinding Bind(const FlagOrAuto<Kind>& choice, std::optional<T>* variable) {
  FlagBinding binding = Bind(choice.kind, variable);
  binding.parse = [variable, parse = std::move(binding.parse)](absl::string_view text) {
    if (text != "auto") return parse(text);
    variable->reset();
    return absl::OkStatus();
  };
  binding.format = [variable, format = std::move(binding.format)] {
    return variable->has_value() ? format() : std::string("auto");
  };
  return binding;
}

}  // namespace berth

#endif  // BERTH_FLAGS_FLAG_VALUE_H_
