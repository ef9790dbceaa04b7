#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace berth {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {}

StopMatcher::Result StopMatcher::Add(absl::string_view piece, bool may_match) {
  Result result;
  if (matched_) return result;
  const size_t num_held = held_.size();
  held_.append(piece.data(), piece.size());
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    // It ends in the piece: what is held may have one that was not to match.
    const size_t found = held_.find(stop, num_held - std::min(num_held, stop.size() - 1));
    if (!may_match || found == std::string::npos) continue;
    if (first == std::string::npos || found < first || (found == first && stop.size() > result.stop.size())) {
      first = found;
      result.stop = stop;
    }
  }
  if (first != std::string::npos) {
    matched_ = result.matched = true;
    result.text = held_.substr(0, first + (include_stop_ ? result.stop.size() : 0));
    held_.clear();
    return result;
  }
  const size_t keep = PossibleStart();
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

size_t StopMatcher::PossibleStart() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace berth
