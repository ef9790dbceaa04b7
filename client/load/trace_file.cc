#include "client/load/trace_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth::cli {
namespace {

using nlohmann::json;

constexpr int64_t kTokensPerHash = 512;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr double kMaxSeconds = 1e9;

// The fields of one line. The first fault is kept.
class Line {
 public:
  explicit Line(const json& object) : object_(object) {}

  bool Has(const char* name) const { return object_.contains(name); }

  double Number(const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end()) return Fault(name, "is missing");
    const double value = found->is_number() ? found->get<double>() : -1;
    if (value >= 0 && value <= kMaxSeconds * 1000) return value;
    return Fault(name, absl::StrCat(found->dump(), " is not a number of 0 or more"));
  }

  int64_t Tokens(const char* name, int64_t least) {
    const auto found = object_.find(name);
    if (found == object_.end()) return static_cast<int64_t>(Fault(name, "is missing"));
    if (found->is_number_integer()) {
      // A number above int64's comes as an unsigned one.
      const bool fits = !found->is_number_unsigned() || found->get<uint64_t>() <= static_cast<uint64_t>(kMaxTokens);
      if (fits && found->get<int64_t>() >= least && found->get<int64_t>() <= kMaxTokens) return found->get<int64_t>();
    }
    return static_cast<int64_t>(
        Fault(name, absl::StrCat(found->dump(), " is not a whole number from ", least, " to ", kMaxTokens)));
  }

  // A number or text that names something.
  static uint64_t Id(const json& value) { return std::hash<std::string>()(value.dump()); }

  const absl::Status& status() const { return status_; }
  const json& object() const { return object_; }

  double Fault(const char* name, const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
    return 0;
  }

 private:
  const json& object_;
  absl::Status status_;
};

TraceEntry ReadMooncake(Line* line) {
  TraceEntry entry = {.arrival = absl::Milliseconds(line->Number("timestamp")),
                      .prompt_tokens = line->Tokens("input_length", 1),
                      .output_tokens = line->Tokens("output_length", 1),
                      .shared = {}};
  if (!line->Has("hash_ids")) return entry;
  const json& ids = line->object()["hash_ids"];
  if (!ids.is_array()) {
    line->Fault("hash_ids", "not a list");
    return entry;
  }
  int64_t covered = 0;
  for (const json& id : ids) {
    const int64_t tokens = std::min(kTokensPerHash, entry.prompt_tokens - covered);
    if (tokens <= 0) break;
    entry.shared.push_back({.id = Line::Id(id), .num_tokens = tokens});
    covered += tokens;
  }
  return entry;
}

TraceEntry ReadOwn(Line* line) {
  TraceEntry entry = {.arrival = absl::Seconds(line->Number("arrival")),
                      .prompt_tokens = line->Tokens("prompt_tokens", 1),
                      .output_tokens = line->Tokens("output_tokens", 1),
                      .shared = {}};
  if (!line->Has("prefix_id")) return entry;
  const int64_t tokens = line->Tokens("prefix_tokens", 1);
  if (tokens > entry.prompt_tokens) {
    line->Fault("prefix_tokens", absl::StrCat(tokens, " is more than prompt_tokens, ", entry.prompt_tokens));
  }
  entry.shared.push_back({.id = Line::Id(line->object()["prefix_id"]), .num_tokens = tokens});
  return entry;
}

absl::StatusOr<TraceEntry> ReadLine(const std::string& text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  Line line(object);
  TraceEntry entry = line.Has("timestamp") ? ReadMooncake(&line) : ReadOwn(&line);
  if (!line.status().ok()) return line.status();
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(const std::string& text) {
  std::vector<TraceEntry> entries;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<TraceEntry> entry = ReadLine(line);
    if (entry.ok() && !entries.empty() && entry->arrival < entries.back().arrival) {
      entry = absl::InvalidArgumentError("it arrives before the line above");
    }
    if (!entry.ok()) return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", entry.status().message()));
    entries.push_back(*std::move(entry));
  }
  if (entries.empty()) return absl::NotFoundError("it has no line");
  const absl::Duration first = entries[0].arrival;
  for (TraceEntry& entry : entries) entry.arrival -= first;
  return entries;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTraceFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!(file.is_open() && text << file.rdbuf())) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  absl::StatusOr<std::vector<TraceEntry>> entries = ParseTrace(text.str());
  if (entries.ok()) return entries;
  return absl::Status(entries.status().code(), absl::StrCat(path, ": ", entries.status().message()));
}

}  // namespace berth::cli
