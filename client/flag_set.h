// The flags of one command: names bound to variables, values read by Abseil's rules, and their help. Thread-compatible.
//
// Why not ABSL_FLAG: those are global, so each command would take every other's flags, and --help would list Abseil's.
//
// To add a flag: 1. a field in the command's options; 2. one Add() beside the others. Parsing and help follow.
#ifndef BERTH_CLIENT_FLAG_SET_H_
#define BERTH_CLIENT_FLAG_SET_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace berth::cli {

// How a variable of type T is read. An optional is absent until its flag is given; a list grows with each use.
template <typename T>
struct FlagValue {
  static constexpr bool kIsBool = std::is_same_v<T, bool>;
  static bool Parse(absl::string_view text, T* variable, std::string* error) {
    if (absl::ParseFlag(text, variable, error)) return true;
    if (error->empty()) *error = kWanted;
    return false;
  }
  static std::string Default(const T& variable) { return kIsBool ? "" : absl::UnparseFlag(variable); }
  static constexpr const char* kWanted = kIsBool                       ? "expected true or false"
                                         : std::is_unsigned_v<T>       ? "expected a whole number, 0 or more"
                                         : std::is_integral_v<T>       ? "expected a whole number"
                                         : std::is_floating_point_v<T> ? "expected a number"
                                         : std::is_same_v<T, absl::Duration>
                                             ? "expected a duration such as 30s or 500ms"
                                             : "not understood";
};

template <typename T>
struct FlagValue<std::optional<T>> {
  static constexpr bool kIsBool = FlagValue<T>::kIsBool;
  static bool Parse(absl::string_view text, std::optional<T>* variable, std::string* error) {
    return FlagValue<T>::Parse(text, &variable->emplace(), error);
  }
  static std::string Default(const std::optional<T>&) { return ""; }
};

template <>
struct FlagValue<std::vector<std::string>> {
  static constexpr bool kIsBool = false;
  static bool Parse(absl::string_view text, std::vector<std::string>* variable, std::string*) {
    variable->emplace_back(text);
    return true;
  }
  static std::string Default(const std::vector<std::string>&) { return ""; }
};

class FlagSet {
 public:
  // The flags added from here on stand under this heading of the help.
  void AddSection(absl::string_view title);

  // `--name=value` or `--name value`; a bool also as `--name`. `value_name` stands for the value in the help, which
  // shows what `*variable` holds now as the default. `*variable` must outlive the set.
  template <typename T>
  void Add(absl::string_view name, T* variable, absl::string_view value_name, absl::string_view help) {
    flags_.push_back({std::string(name), std::string(value_name), std::string(help), FlagValue<T>::Default(*variable),
                      FlagValue<T>::kIsBool, false, [variable](absl::string_view text, std::string* error) {
                        return FlagValue<T>::Parse(text, variable, error);
                      }});
  }

  struct Parsed {
    std::vector<std::string> positional;  // what is no flag; everything after `--`
    bool help = false;                    // --help or -h; nothing after it was read
  };

  // INVALID_ARGUMENT: one line naming the flag, its value and what was expected.
  absl::StatusOr<Parsed> Parse(absl::Span<const std::string> args) const;

  // One entry per flag, in the order they were added.
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string value_name;
    std::string help;
    std::string default_text;
    bool is_bool;
    bool is_section;
    std::function<bool(absl::string_view, std::string*)> parse;
  };

  absl::StatusOr<const Flag*> Find(absl::string_view name) const;

  std::vector<Flag> flags_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_FLAG_SET_H_
