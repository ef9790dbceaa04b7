// Checks of one value of a message. Each error is INVALID_ARGUMENT and names field, value and limit. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_FIELD_CHECKS_H_
#define BERTH_SERVER_REQUEST_FIELD_CHECKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace berth {

// The shortest decimal text that reads back as the same value: "0.1", "1.0000001", "nan".
std::string ShortestText(float value);
std::string ShortestText(double value);
inline std::string ShortestText(int64_t value) { return absl::StrCat(value); }

// Joins its arguments: Invalid("stop", ": ", 17, " ...").
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The numbers that a field takes: from `low` to `high`, both included unless `excludes_low`.
struct Range {
  double low = 0;
  double high = 0;
  bool excludes_low = false;
};
inline Range Closed(double low, double high) { return {low, high}; }
inline Range OpenBelow(double low, double high) { return {low, high, /*excludes_low=*/true}; }

// T is float, double or int64_t; the limits are rounded to T. NaN is in no range.
template <typename T>
absl::Status CheckRange(absl::string_view field, T value, const Range& range) {
  const T low = static_cast<T>(range.low);
  const T high = static_cast<T>(range.high);
  if ((range.excludes_low ? value > low : value >= low) && value <= high) return absl::OkStatus();
  return Invalid(field, ": ", ShortestText(value), " is outside ", range.excludes_low ? "(" : "[", ShortestText(low),
                 ", ", ShortestText(high), "]");
}

// Number of entries of a list.
absl::Status CheckCount(absl::string_view field, int64_t count, int64_t limit);

// A token id, which must be in [0, vocab_size).
absl::Status CheckToken(absl::string_view field, int64_t token, int64_t vocab_size);

template <typename Ids>
absl::Status CheckTokens(absl::string_view field, const Ids& ids, int64_t vocab_size) {
  for (int64_t i = 0; i < static_cast<int64_t>(ids.size()); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return CheckToken(absl::StrCat(field, "[", i, "]"), ids[i], vocab_size);
  }
  return absl::OkStatus();
}

// Number of bytes of a text.
absl::Status CheckText(absl::string_view field, const std::string& text, int64_t limit);

// 1 to 128 characters, none of them a control character.
absl::Status CheckRequestId(absl::string_view field, std::string_view id);
// A request id's rules, but it may be empty.
absl::Status CheckCacheSalt(absl::string_view field, std::string_view salt);

// Collects the results of several checks. The first error wins.
class Checks {
 public:
  void Add(absl::Status status) { status_.Update(std::move(status)); }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_FIELD_CHECKS_H_
