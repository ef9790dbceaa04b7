// The flags of a program or command. A flag binds a name to a variable, with the kind of its value
// (flags/flag_value.h), its limits and a help text. Parsing, errors, --help and docs/flags.md follow from that.
// Thread-compatible.
//
//   FlagSet flags;
//   flags.AddGroup("Limits");
//   flags.Add("max_queue", &options.max_queue, Between(1, 1 << 20), "Maximum number of requests that wait.");
//   absl::StatusOr<FlagSet::Parsed> parsed = flags.Parse(arguments);
//
// Why not ABSL_FLAG: those are global, so each command of the client would take every other's flags. A flag that fills
// a field of an Options struct would be written three times.
#ifndef BERTH_FLAGS_FLAG_SET_H_
#define BERTH_FLAGS_FLAG_SET_H_

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "flags/flag_value.h"

namespace berth {

class FlagSet {
 public:
  // Starts a group: the flags added from here on stand under this title.
  void AddGroup(absl::string_view title) { groups_.push_back({std::string(title), {}}); }

  // Adds `--name=value`, also written `--name value`; a bool is set by `--name` alone. `kind` is one of
  // flags/flag_value.h. What `*variable` holds now is the default. `*variable` must outlive the set's last Parse.
  template <typename T, typename Kind>
  void Add(absl::string_view name, T* variable, const Kind& kind, absl::string_view help) {
    FlagBinding binding = Bind(kind, variable);
    std::string default_text = binding.format();
    AddFlag({std::string(name), std::string(help), std::move(default_text), std::move(binding)});
  }

  // Adds --flagfile=FILE, which reads flags from a file: one --name=value in each line; # starts a comment. Flags on
  // the command line win.
  void AddFlagFile();

  // Makes a flag that has a new name fail with a message that says so.
  void AddRenamed(absl::string_view old_name, absl::string_view new_name);

  struct Parsed {
    std::vector<std::string> positional;  // arguments that are not flags; everything after `--`
    bool help = false;                    // --help, -h or --help=markdown: no variable was changed
    bool markdown = false;                // --help=markdown
  };

  // Sets the variables. INVALID_ARGUMENT: one line that names the flag, its value and what is allowed.
  absl::StatusOr<Parsed> Parse(absl::Span<const std::string> args) const;

  // The groups and flags in the order they were added, as text for a terminal or as Markdown.
  std::string Help() const;
  std::string Markdown() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string default_text;
    FlagBinding binding;

    bool is_flag_file() const { return binding.parse == nullptr; }
    // "--name" or "--name=placeholder".
    std::string Usage() const;
  };
  struct Group {
    std::string title;
    std::vector<Flag> flags;
  };
  // A flag as it was given, and where: " (file, line 3)"; "": on the command line.
  struct Assignment {
    const Flag* flag = nullptr;
    std::string value;
    std::string where;
  };

  void AddFlag(Flag flag);
  const Flag* FindOrNull(absl::string_view name) const;
  // INVALID_ARGUMENT: the flag has a new name, or is UnknownFlag.
  absl::StatusOr<const Flag*> Find(absl::string_view name) const;
  // An error that suggests the nearest name.
  absl::Status UnknownFlag(absl::string_view dashes, absl::string_view name) const;
  // The name that `name` is most likely a misspelling of; "": none.
  std::string Nearest(absl::string_view name) const;
  // Splits the arguments into assignments and `*parsed`, without setting anything.
  absl::StatusOr<std::vector<Assignment>> Scan(absl::Span<const std::string> args, Parsed* parsed) const;
  absl::StatusOr<std::vector<Assignment>> ReadFlagFile(const std::string& path) const;

  std::vector<Group> groups_;
  std::vector<std::pair<std::string, std::string>> renamed_;  // old name, new name
};

}  // namespace berth

#endif  // BERTH_FLAGS_FLAG_SET_H_
