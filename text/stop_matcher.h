// Finds the first stop string in a text that comes in pieces. Holds back what could still become one, so that no part
// of a stop string is ever shown. Not thread-safe.
#ifndef BERTH_TEXT_STOP_MATCHER_H_
#define BERTH_TEXT_STOP_MATCHER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace berth {

class StopMatcher {
 public:
  struct Result {
    std::string text;  // what may be shown now
    bool matched = false;
    std::string stop;  // which one, when matched: the one that begins first, of those the longest
  };

  // REQUIRES: no stop string is empty. include_stop: the match itself is shown too.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // After a match nothing more is shown.
  Result Add(absl::string_view piece);
  // What was held back: the text has ended.
  std::string Flush();

 private:
  // Length of the longest end of held_ that begins a stop string.
  size_t PossibleStart() const;

  std::vector<std::string> stops_;
  bool include_stop_;
  bool matched_ = false;
  std::string held_;
};

}  // namespace berth

#endif  // BERTH_TEXT_STOP_MATCHER_H_
