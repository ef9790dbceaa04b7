#include "server/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;

void Add(MetricFamilies* families, Type type, absl::string_view name, absl::string_view help, double value) {
  families->Start(type, name, help);
  families->Add(value);
}

std::string ReadText(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The fields of /proc/self/stat after the second, which is a name and may contain any character.
std::vector<std::string> StatFields() {
  const std::string stat = ReadText("/proc/self/stat");
  const size_t end_of_name = stat.rfind(") ");
  if (end_of_name == std::string::npos) return {};
  return absl::StrSplit(stat.substr(end_of_name + 2), ' ');
}

// Reads a field by its number in proc(5), which counts from 1.
double Field(const std::vector<std::string>& fields, size_t number) {
  double value = 0;
  if (number - 3 < fields.size() && absl::SimpleAtod(fields[number - 3], &value)) return value;
  return 0;
}

// Start time of the system, in seconds since 1970.
double BootTime() {
  for (absl::string_view line : absl::StrSplit(ReadText("/proc/stat"), '\n')) {
    double seconds = 0;
    if (absl::ConsumePrefix(&line, "btime ") && absl::SimpleAtod(line, &seconds)) return seconds;
  }
  return 0;
}

int CountOpenFiles() {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc/self/fd"), closedir);
  int count = 0;
  while (directory != nullptr && readdir(directory.get()) != nullptr) ++count;
  return count - 3;  // ".", ".." and the directory itself
}

}  // namespace

void CollectProcess(MetricFamilies* families) {
  families->StartSection("Process");
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const std::vector<std::string> fields = StatFields(); !fields.empty()) {
    static const double boot_time = BootTime();
    Add(families, Type::kCounter, "process_cpu_seconds_total", "CPU time used, in user and system mode",
        (Field(fields, 14) + Field(fields, 15)) / ticks);
    Add(families, Type::kGauge, "process_start_time_seconds", "Start time of the process, since 1970",
        boot_time + Field(fields, 22) / ticks);
    Add(families, Type::kGauge, "process_threads", "Threads of the process", Field(fields, 20));
    Add(families, Type::kGauge, "process_virtual_memory_bytes", "Virtual memory size", Field(fields, 23));
    Add(families, Type::kGauge, "process_resident_memory_bytes", "Resident memory size",
        Field(fields, 24) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  if (const int count = CountOpenFiles(); count >= 0) {
    Add(families, Type::kGauge, "process_open_fds", "Open file descriptors", count);
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Add(families, Type::kGauge, "process_max_fds", "Maximum of open file descriptors",
        static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace berth
