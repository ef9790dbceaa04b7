// Why a request was refused, for the counter of refusals. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_REFUSAL_REASON_H_
#define BERTH_SERVER_REQUEST_REFUSAL_REASON_H_

#include <optional>

#include "absl/status/status.h"
#include "scheduler/refusal.h"

namespace berth {

// None: the status is not that of a refusal.
std::optional<RefusalReason> ReasonOf(const absl::Status& status);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_REFUSAL_REASON_H_
