// Why a request was refused, as a part of its status: a metric counts the reasons, and the client gets them. Plain
// data and functions; thread-safe.
//
// To add a reason: 1. add it to RefusalReason and its name to kRefusalReasons; 2. return RefusedError where the request
// is refused; 3. name it in docs/operations.md, section Admission.
#ifndef BERTH_SCHEDULER_REFUSAL_H_
#define BERTH_SCHEDULER_REFUSAL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

enum class RefusalReason : uint8_t {
  kQueueFull,           // --max_queue
  kQueuedTokens,        // --max_queued_tokens
  kWait,                // --max_wait
  kDeadline,            // the first token would come after the request's deadline
  kTexts,               // too many texts wait to be tokenised or rendered
  kGrammars,            // too many requests wait for their grammars
  kTenantRequestRate,   // requests_per_second of --tenants
  kTenantTokenRate,     // tokens_per_second
  kTenantQueue,         // queued_requests
  kTenantQueuedTokens,  // queued_tokens
  kTenantRunning,       // running_sequences
  kTenantCache,         // cache_bytes
  kTenantErased,        // an operator erases the tenant
  kDraining,            // the server drains, or its engine has failed
  kTooLong,
  kInvalid,
  kUnauthenticated,
  kOther,
};

// The values of the metric's label, by RefusalReason.
inline constexpr absl::string_view kRefusalReasons[] = {"queue_full",
                                                        "queued_tokens",
                                                        "wait",
                                                        "deadline",
                                                        "texts",
                                                        "grammars",
                                                        "tenant_request_rate",
                                                        "tenant_token_rate",
                                                        "tenant_queue",
                                                        "tenant_queued_tokens",
                                                        "tenant_running",
                                                        "tenant_cache",
                                                        "tenant_erased",
                                                        "draining",
                                                        "too_long",
                                                        "invalid",
                                                        "unauthenticated",
                                                        "other"};
inline constexpr size_t kNumRefusalReasons = static_cast<size_t>(RefusalReason::kOther) + 1;

struct Refusal {
  RefusalReason reason = RefusalReason::kOther;
  // When a retry may succeed, rounded up to milliseconds. 0: never, because the request alone is over the limit.
  absl::Duration retry_after = absl::Seconds(1);
  std::string setting;  // the flag, or the field of --tenants; "": the limit is not set
  std::string limit;    // its value
  std::string value;    // what the request would have made it
  std::optional<std::string> tenant;

  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// RESOURCE_EXHAUSTED with `message`, which says what a client needs to know without the refusal.
absl::Status RefusedError(const Refusal& refusal, absl::string_view message);

// What RefusedError was given; none for a status of another origin.
std::optional<Refusal> RefusalOf(const absl::Status& status);

}  // namespace berth

#endif  // BERTH_SCHEDULER_REFUSAL_H_
