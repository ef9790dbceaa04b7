#include "base/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int64_t kLargestLimit = int64_t{1} << 60;  // version 1 writes about 2^63 for none

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number in a file that holds nothing else; `fallback` when there is none ("max", no such file).
int64_t ReadNumber(const std::string& path, int64_t fallback) {
  int64_t value = 0;
  return absl::SimpleAtoi(ReadText(path), &value) ? value : fallback;
}

// The number that follows `key` at the start of a line.
int64_t ReadField(const std::string& path, absl::string_view key, int64_t fallback) {
  const std::string text = ReadText(path);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t value = 0;
    if (!words.empty() && absl::SimpleAtoi(words.front(), &value)) return value;
  }
  return fallback;
}

// Calls visit(folder, whether it is of version 1) for the control group of this process that limits `controller`, and
// for those around it.
template <typename Visit>
void ForEachGroup(const std::string& root, absl::string_view controller, const Visit& visit) {
  const std::string groups = ReadText(root + "/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));  // number:names:path
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> names = absl::StrSplit(fields[1], ',');
    const bool version_1 = !fields[1].empty();
    if (version_1 && std::find(names.begin(), names.end(), controller) == names.end()) continue;
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup", version_1 ? "/" : "", version_1 ? controller : "");
    std::string group(absl::StripSuffix(fields[2], "/"));
    while (true) {
      visit(absl::StrCat(mount, group, "/"), version_1);
      if (group.empty()) break;
      group.resize(group.rfind('/'));
    }
  }
}

// What the limit of a group's memory leaves.
int64_t LeftInGroup(const std::string& folder, bool version_1) {
  const int64_t limit = ReadNumber(folder + (version_1 ? "memory.limit_in_bytes" : "memory.max"), kUnbounded);
  if (limit >= kLargestLimit) return kUnbounded;
  const int64_t usage = ReadNumber(folder + (version_1 ? "memory.usage_in_bytes" : "memory.current"), 0);
  // File pages that go when memory is short.
  const int64_t reclaimable =
      ReadField(folder + "memory.stat", version_1 ? "total_inactive_file " : "inactive_file ", 0);
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - reclaimable));
}

// What ulimit -v leaves.
int64_t LeftInAddressSpace(const std::string& root) {
  const int64_t limit = ReadField(root + "/proc/self/limits", "Max address space", kUnbounded);
  if (limit == kUnbounded) return kUnbounded;
  return std::max<int64_t>(0, limit - 1024 * ReadField(root + "/proc/self/status", "VmSize:", 0));
}

// The processors of a group's quota, rounded up. Version 2 writes "QUOTA PERIOD" or "max PERIOD", version 1 has a file
// for each, and -1 for none.
int64_t QuotaOfGroup(const std::string& folder, bool version_1) {
  const std::string text =
      version_1 ? absl::StrCat(ReadText(folder + "cpu.cfs_quota_us"), " ", ReadText(folder + "cpu.cfs_period_us"))
                : ReadText(folder + "cpu.max");
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t quota = 0, period = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota) || !absl::SimpleAtoi(words[1], &period)) {
    return kUnbounded;
  }
  if (quota <= 0 || period <= 0) return kUnbounded;
  return quota / period + (quota % period > 0 ? 1 : 0);
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  const int64_t kib = ReadField(root + "/proc/meminfo", "MemAvailable:", 0);
  int64_t available = std::min(kib > 0 ? kib * 1024 : kUnbounded, LeftInAddressSpace(root));
  ForEachGroup(root, "memory", [&](const std::string& folder, bool version_1) {
    available = std::min(available, LeftInGroup(folder, version_1));
  });
  return available == kUnbounded ? 0 : available;
}

int64_t CpuQuota(const std::string& root) {
  int64_t quota = kUnbounded;
  ForEachGroup(root, "cpu", [&](const std::string& folder, bool version_1) {
    quota = std::min(quota, QuotaOfGroup(folder, version_1));
  });
  return quota == kUnbounded ? 0 : quota;
}

int AvailableCpus() {
  cpu_set_t mask;
  // It fails on a machine with more processors than the mask has room for.
  const int64_t masked = sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 0;
  const int64_t cpus = masked > 0 ? masked : std::max(1u, std::thread::hardware_concurrency());
  const int64_t quota = CpuQuota();
  return static_cast<int>(quota > 0 ? std::min(cpus, quota) : cpus);
}

}  // namespace berth
