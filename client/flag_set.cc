#include "client/flag_set.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth::cli {
namespace {

constexpr size_t kColumn = 28;  // where a flag's description starts
constexpr size_t kWidth = 100;

// Appends `text` in lines that start at kColumn, the first one on the line that `out` ends with.
void AppendWrapped(absl::string_view text, std::string* out) {
  const size_t line_start = out->rfind('\n') == std::string::npos ? 0 : out->rfind('\n') + 1;
  size_t column = out->size() - line_start;
  if (column + 2 > kColumn) {
    absl::StrAppend(out, "\n");
    column = 0;
  }
  out->append(kColumn - column, ' ');
  column = kColumn;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > kColumn && column + 1 + word.size() > kWidth) {
      absl::StrAppend(out, "\n", std::string(kColumn, ' '));
      column = kColumn;
    }
    if (column > kColumn) absl::StrAppend(out, " ");
    column += word.size() + (column > kColumn ? 1 : 0);
    absl::StrAppend(out, word);
  }
  absl::StrAppend(out, "\n");
}

}  // namespace

void FlagSet::AddSection(absl::string_view title) {
  flags_.push_back({std::string(title), "", "", "", false, true, nullptr});
}

absl::StatusOr<const FlagSet::Flag*> FlagSet::Find(absl::string_view name) const {
  const auto found = std::find_if(flags_.begin(), flags_.end(),
                                  [name](const Flag& flag) { return !flag.is_section && flag.name == name; });
  if (found == flags_.end()) return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
  return &*found;
}

absl::StatusOr<FlagSet::Parsed> FlagSet::Parse(absl::Span<const std::string> args) const {
  Parsed parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg == "--") {
      parsed.positional.insert(parsed.positional.end(), args.begin() + i + 1, args.end());
      return parsed;
    }
    if (arg == "--help" || arg == "-h") {
      parsed.help = true;
      return parsed;
    }
    if (arg.size() < 2 || arg[0] != '-') {
      parsed.positional.emplace_back(arg);
      continue;
    }
    if (!absl::ConsumePrefix(&arg, "--")) return absl::InvalidArgumentError(absl::StrCat("unknown flag ", arg));
    const size_t equals = arg.find('=');
    auto flag = Find(arg.substr(0, equals));
    if (!flag.ok()) return flag.status();
    absl::string_view value = "true";
    if (equals != absl::string_view::npos) {
      value = arg.substr(equals + 1);
    } else if (!(*flag)->is_bool) {
      if (++i == args.size()) return absl::InvalidArgumentError(absl::StrCat("--", arg, " needs a value"));
      value = args[i];
    }
    std::string error;
    if (!(*flag)->parse(value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat("--", (*flag)->name, "=", value, ": ", error));
    }
  }
  return parsed;
}

std::string FlagSet::Help() const {
  std::string help;
  for (const Flag& flag : flags_) {
    if (flag.is_section) {
      absl::StrAppend(&help, help.empty() ? "" : "\n", flag.name, ":\n");
      continue;
    }
    absl::StrAppend(&help, "  --", flag.name, flag.value_name.empty() ? "" : "=", flag.value_name);
    const std::string fallback = flag.default_text.empty() ? "" : absl::StrCat(" Default: ", flag.default_text, ".");
    AppendWrapped(absl::StrCat(flag.help, fallback), &help);
  }
  return help;
}

}  // namespace berth::cli
