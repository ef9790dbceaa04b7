#include "scheduler/load/queue_limits.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/refusal.h"

namespace berth {
namespace {

// No retry is told to come sooner, so that refused clients do not keep the server busy.
constexpr absl::Duration kMinRetry = absl::Milliseconds(100);

std::string InMilliseconds(absl::Duration time) {
  return absl::FormatDuration(absl::Ceil(time, absl::Milliseconds(1)));
}

// `after` is a prediction; 0: there is none.
absl::Duration RetryAfter(absl::Duration after) {
  return after <= absl::ZeroDuration() ? Refusal().retry_after : std::max(kMinRetry, after);
}

// The queue is full until one request leaves it.
absl::Status FullQueue(const QueueLimits& limits, const QueueState& queue, absl::Duration wait) {
  return RefusedError({.reason = RefusalReason::kQueueFull,
                       .retry_after = RetryAfter(wait / std::max<int64_t>(1, queue.num_requests)),
                       .setting = "max_queue",
                       .limit = absl::StrCat(limits.max_requests),
                       .value = absl::StrCat(queue.num_requests + 1)},
                      absl::StrCat("the queue is full: max_queue is ", limits.max_requests, " requests; retry later"));
}

absl::Status TooManyTokens(const QueueLimits& limits, const QueueState& queue, const QueueRequest& request) {
  const int64_t tokens = queue.num_tokens + request.num_tokens;
  Refusal refusal = {.reason = RefusalReason::kQueuedTokens,
                     .setting = "max_queued_tokens",
                     .limit = absl::StrCat(limits.max_tokens),
                     .value = absl::StrCat(tokens)};
  if (request.num_tokens > limits.max_tokens) {
    refusal.retry_after = absl::ZeroDuration();
    return RefusedError(refusal, absl::StrCat("the request has ", request.num_tokens, " tokens, over the ",
                                              limits.max_tokens, " of max_queued_tokens alone"));
  }
  const Backlog excess = {.prefill_tokens = tokens - limits.max_tokens, .num_places = 1 << 30};
  refusal.retry_after = RetryAfter(PredictWait(queue.rates, queue.step, excess, /*num_sequences=*/0));
  return RefusedError(refusal, absl::StrCat("with this request, ", tokens, " tokens would wait; max_queued_tokens is ",
                                            limits.max_tokens, "; retry later"));
}

}  // namespace

absl::Status CheckQueue(const QueueLimits& limits, const QueueState& queue, const QueueRequest& request) {
  const absl::Duration wait = PredictWait(queue.rates, queue.step, queue.backlog, request.num_sequences);
  if (queue.num_requests >= limits.max_requests) return FullQueue(limits, queue, wait);
  if (limits.max_tokens > 0 && queue.num_tokens + request.num_tokens > limits.max_tokens) {
    return TooManyTokens(limits, queue, request);
  }
  if (limits.max_wait > absl::ZeroDuration() && wait > limits.max_wait) {
    return RefusedError({.reason = RefusalReason::kWait,
                         .retry_after = RetryAfter(wait - limits.max_wait),
                         .setting = "max_wait",
                         .limit = InMilliseconds(limits.max_wait),
                         .value = InMilliseconds(wait)},
                        absl::StrCat("the request would wait ", InMilliseconds(wait), "; max_wait is ",
                                     InMilliseconds(limits.max_wait), "; retry later"));
  }
  // With no prefill before it, a request is tried, whatever its own is thought to take: only what is prefilled corrects
  // the rates. If every request were refused by an old measurement, that would stay.
  absl::Duration first_token = wait;
  if (queue.backlog.prefill_tokens > 0) {
    first_token += PredictPrefill(queue.rates, queue.step, request.num_tokens, request.shares_prefix);
  }
  if (request.time_left <= absl::ZeroDuration() || first_token <= request.time_left) return absl::OkStatus();
  // Less of a queue helps, less of a prompt does not.
  const absl::Duration late = std::min(wait, first_token - request.time_left);
  return RefusedError({.reason = RefusalReason::kDeadline,
                       .retry_after = wait <= absl::ZeroDuration() ? absl::ZeroDuration() : RetryAfter(late),
                       .limit = InMilliseconds(request.time_left),
                       .value = InMilliseconds(first_token)},
                      absl::StrCat("the first token would come in ", InMilliseconds(first_token),
                                   ", after the deadline in ", InMilliseconds(request.time_left)));
}

}  // namespace berth
