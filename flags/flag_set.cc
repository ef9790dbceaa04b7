#include "flags/flag_set.h"

#include <algorithm>
#include <fstream>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

constexpr size_t kColumn = 32;  // where a flag's description starts
constexpr size_t kWidth = 120;
// A name is taken for a misspelling of another that is at most this many edits away.
constexpr size_t kMaxEdits = 3;

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

// The smallest number of characters inserted, deleted or replaced that turns `a` into `b` (Levenshtein's distance), by
// dynamic programming over the prefixes of `a`, one row for each.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// For a cell of a table.
std::string EscapeCell(absl::string_view text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

std::string Code(absl::string_view text) { return text.empty() ? "" : absl::StrCat("`", EscapeCell(text), "`"); }

}  // namespace

std::string FlagSet::Flag::Usage() const {
  return absl::StrCat("--", name, binding.placeholder.empty() ? "" : "=", binding.placeholder);
}

void FlagSet::AddFlag(Flag flag) {
  if (groups_.empty()) AddGroup("Flags");
  groups_.back().flags.push_back(std::move(flag));
}

void FlagSet::AddFlagFile() {
  FlagBinding binding;
  binding.placeholder = "file";
  AddFlag({"flagfile", "Read flags from a file, one per line. # starts a comment. The command line wins.", "",
           std::move(binding)});
}

void FlagSet::AddRenamed(absl::string_view old_name, absl::string_view new_name) {
  renamed_.emplace_back(old_name, new_name);
}

const FlagSet::Flag* FlagSet::FindOrNull(absl::string_view name) const {
  for (const Group& group : groups_) {
    for (const Flag& flag : group.flags) {
      if (flag.name == name) return &flag;
    }
  }
  return nullptr;
}

std::string FlagSet::Nearest(absl::string_view name) const {
  std::string nearest;
  size_t fewest = std::min(kMaxEdits, name.size() / 2) + 1;
  const auto consider = [&](const std::string& candidate, const std::string& current_name) {
    const size_t edits = EditDistance(name, candidate);
    if (edits >= fewest) return;
    fewest = edits;
    nearest = current_name;
  };
  for (const Group& group : groups_) {
    for (const Flag& flag : group.flags) consider(flag.name, flag.name);
  }
  for (const auto& [old_name, new_name] : renamed_) consider(old_name, new_name);
  return nearest;
}

absl::StatusOr<const FlagSet::Flag*> FlagSet::Find(absl::string_view name) const {
  if (const Flag* flag = FindOrNull(name); flag != nullptr) return flag;
  for (const auto& [old_name, new_name] : renamed_) {
    if (old_name == name) return absl::InvalidArgumentError(absl::StrCat("--", name, " is now --", new_name));
  }
  return UnknownFlag("--", name);
}

absl::Status FlagSet::UnknownFlag(absl::string_view dashes, absl::string_view name) const {
  name = name.substr(0, name.find('='));
  const std::string nearest = Nearest(name);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag ", dashes, name, nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?")));
}

absl::StatusOr<std::vector<FlagSet::Assignment>> FlagSet::Scan(absl::Span<const std::string> args,
                                                               Parsed* parsed) const {
  std::vector<Assignment> assignments;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg == "--") {
      parsed->positional.insert(parsed->positional.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (arg == "--help" || arg == "-h" || arg == "--help=markdown") {
      parsed->help = true;
      parsed->markdown = arg == "--help=markdown";
      break;
    }
    if (arg.size() < 2 || arg[0] != '-') {
      parsed->positional.emplace_back(arg);
      continue;
    }
    if (!absl::ConsumePrefix(&arg, "--")) return UnknownFlag("-", arg.substr(1));
    const size_t equals = arg.find('=');
    const absl::StatusOr<const Flag*> flag = Find(arg.substr(0, equals));
    if (!flag.ok()) return flag.status();
    absl::string_view value = "true";
    if (equals != absl::string_view::npos) {
      value = arg.substr(equals + 1);
    } else if (!(*flag)->binding.is_bool) {
      if (++i == args.size()) return absl::InvalidArgumentError(absl::StrCat("--", arg, " needs a value"));
      value = args[i];
    }
    assignments.push_back({*flag, std::string(value), ""});
  }
  return assignments;
}

absl::StatusOr<std::vector<FlagSet::Assignment>> FlagSet::ReadFlagFile(const std::string& path) const {
  std::ifstream file(path);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--flagfile: cannot read ", path));
  std::vector<Assignment> all;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.empty() || text[0] == '#') continue;
    const std::string where = absl::StrCat(" (", path, ", line ", number, ")");
    Parsed parsed;
    absl::StatusOr<std::vector<Assignment>> assignments = Scan({text}, &parsed);
    if (!assignments.ok()) return absl::InvalidArgumentError(absl::StrCat(assignments.status().message(), where));
    if (assignments->size() != 1 || assignments->front().flag->is_flag_file()) {
      return absl::InvalidArgumentError(absl::StrCat("--flagfile: ", text, " is not --name=value", where));
    }
    all.push_back(std::move(assignments->front()));
    all.back().where = where;
  }
  return all;
}

absl::StatusOr<FlagSet::Parsed> FlagSet::Parse(absl::Span<const std::string> args) const {
  Parsed parsed;
  absl::StatusOr<std::vector<Assignment>> given = Scan(args, &parsed);
  if (!given.ok()) return given.status();
  if (parsed.help) return parsed;
  std::vector<Assignment> assignments;
  for (const Assignment& assignment : *given) {
    if (!assignment.flag->is_flag_file()) continue;
    absl::StatusOr<std::vector<Assignment>> read = ReadFlagFile(assignment.value);
    if (!read.ok()) return read.status();
    assignments.insert(assignments.end(), read->begin(), read->end());
  }
  assignments.insert(assignments.end(), given->begin(), given->end());
  for (const Assignment& assignment : assignments) {
    if (assignment.flag->is_flag_file()) continue;
    const absl::Status status = assignment.flag->binding.parse(assignment.value);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", assignment.flag->name, ": ", status.message(), assignment.where));
  }
  return parsed;
}

std::string FlagSet::Help() const {
  std::string help;
  for (const Group& group : groups_) {
    absl::StrAppend(&help, help.empty() ? "" : "\n", group.title, ":\n");
    for (const Flag& flag : group.flags) {
      absl::StrAppend(&help, "  ", flag.Usage());
      const bool shows_default = !flag.default_text.empty() && flag.default_text != "false";
      AppendWrapped(absl::StrCat(flag.help, shows_default ? absl::StrCat(" Default: ", flag.default_text, ".") : ""),
                    &help);
    }
  }
  return help;
}

std::string FlagSet::Markdown() const {
  std::string text;
  for (const Group& group : groups_) {
    absl::StrAppend(&text, "\n### ", group.title, "\n\n| Flag | Default | Description |\n|---|---|---|\n");
    for (const Flag& flag : group.flags) {
      const std::string& limits = flag.binding.limits;
      absl::StrAppend(&text, "| ", Code(flag.Usage()), " | ", Code(flag.default_text), " | ", EscapeCell(flag.help),
                      limits.empty() ? "" : absl::StrCat(" Range: ", limits, "."), " |\n");
    }
  }
  return text;
}

}  // namespace berth
