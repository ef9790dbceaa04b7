#include "scheduler/refusal.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace berth {
namespace {

static_assert(std::size(kRefusalReasons) == kNumRefusalReasons);

// The status carries the refusal as a payload of lines: reason, milliseconds, setting, limit, value, tenant. Only the
// last may have line breaks of its own. A line more, before it, says whether there is a tenant.
constexpr char kPayload[] = "berth/refusal";
constexpr int kLines = 7;

constexpr absl::Duration kLongestRetry = absl::Hours(1);

}  // namespace

absl::Status RefusedError(const Refusal& refusal, absl::string_view message) {
  const absl::Duration wait = absl::Ceil(refusal.retry_after, absl::Milliseconds(1));
  const int64_t milliseconds = absl::ToInt64Milliseconds(std::clamp(wait, absl::ZeroDuration(), kLongestRetry));
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(
      kPayload, absl::Cord(absl::StrJoin({absl::StrCat(static_cast<int>(refusal.reason)), absl::StrCat(milliseconds),
                                          refusal.setting, refusal.limit, refusal.value,
                                          absl::StrCat(refusal.tenant.has_value()), refusal.tenant.value_or("")},
                                         "\n")));
  return status;
}

std::optional<Refusal> RefusalOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', kLines - 1));
  int reason = 0;
  int64_t milliseconds = 0;
  if (lines.size() != kLines || !absl::SimpleAtoi(lines[0], &reason) || !absl::SimpleAtoi(lines[1], &milliseconds)) {
    return std::nullopt;
  }
  Refusal refusal = {.reason = static_cast<RefusalReason>(reason),
                     .retry_after = absl::Milliseconds(milliseconds),
                     .setting = lines[2],
                     .limit = lines[3],
                     .value = lines[4]};
  if (lines[5] == "1") refusal.tenant = lines[6];
  return refusal;
}

}  // namespace berth
