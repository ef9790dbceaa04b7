// Finds the first stop string in a text that comes in pieces. Holds back text that could still become a stop string, so
// that no part of one is ever shown. Not thread-safe.
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
    std::string stop;  // the matched one: the first to begin, and of several that begin there the longest
  };

  // REQUIRES: no stop string is empty. include_stop: the match itself is shown too.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // Adds a piece and returns the text to show. After a match it returns no more text. `may_match`: whether a stop
  // string may end in this piece.
  Result Add(absl::string_view piece, bool may_match = true);
  // Returns the text that was held back. Call it at the end of the text.
  std::string Flush();

 private:
  // Length of the longest suffix of held_ that is a prefix of a stop string.
  size_t PossibleStart() const;

  std::vector<std::string> stops_;
  bool include_stop_;
  bool matched_ = false;
  std::string held_;
};

}  // namespace berth

#endif  // BERTH_TEXT_STOP_MATCHER_H_
