#include "server/process/line_limit.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {

std::optional<std::string> LineLimit::Admit(std::string key) {
  const absl::Time now = options_.now();
  MutexLock lock(&mutex_);
  const auto found = by_name_.find(key);
  if (found == by_name_.end()) {
    keys_.push_back({.name = key, .last_line = now});
    by_name_.emplace(std::move(key), std::prev(keys_.end()));
    if (keys_.size() > options_.max_keys) {
      by_name_.erase(keys_.front().name);
      keys_.pop_front();
    }
    return "";
  }
  Key& known = *found->second;
  if (now - known.last_line < options_.interval) {
    ++known.unlogged;
    return std::nullopt;
  }
  known.last_line = now;
  keys_.splice(keys_.end(), keys_, found->second);
  const int64_t unlogged = std::exchange(known.unlogged, 0);
  return unlogged == 0 ? "" : absl::StrCat(" unlogged_before=", unlogged);
}

}  // namespace berth
