#include "server/admission/admission.h"

#include <algorithm>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

// A request passes two checks, and each takes all of its amounts or none. Arrive checks what is known before the
// text is tokenised: one request and at least one sequence. Pay checks the rest, once the tokens are known. It pays for
// the most tokens that the request may generate; End returns those that it did not.
//
// Limits may change while requests run (SIGHUP). So an account's limits and buckets are refreshed whenever it is used,
// and what a request holds is counted by its ticket, not by a limit.
namespace berth {
namespace {

std::string Quoted(const std::string& tenant) { return absl::StrCat("tenant \"", absl::Utf8SafeCEscape(tenant), "\""); }

// Refuses when `held` + `more` is over the limit, if there is one. When nothing is held, no retry can succeed.
absl::Status CheckCount(RefusalReason reason, const char* field, const std::string& tenant, bool has_limit,
                        int64_t limit, int64_t held, int64_t more) {
  if (!has_limit || held + more <= limit) return absl::OkStatus();
  const bool alone = more > limit;
  Refusal refusal = {.reason = reason,
                     .setting = field,
                     .limit = absl::StrCat(limit),
                     .value = absl::StrCat(held + more),
                     .tenant = tenant};
  if (alone) refusal.retry_after = absl::ZeroDuration();
  return RefusedError(
      refusal, absl::StrCat(Quoted(tenant), ": the request makes it ", held + more, " ", field, ", over the limit of ",
                            limit, alone ? "; it is over the limit alone" : "; retry later"));
}

absl::Status CheckRate(RefusalReason reason, const char* field, const std::string& tenant, double rate,
                       const TokenBucket& bucket, double amount) {
  const absl::Duration wait = bucket.TimeUntil(amount);
  if (wait <= absl::ZeroDuration()) return absl::OkStatus();
  return RefusedError({.reason = reason,
                       .retry_after = wait,
                       .setting = field,
                       .limit = absl::StrCat(rate),
                       .value = absl::StrCat(amount),
                       .tenant = tenant},
                      absl::StrCat(Quoted(tenant), ": ", field, " of ", rate, " is used up; retry in ",
                                   absl::FormatDuration(absl::Ceil(wait, absl::Milliseconds(1)))));
}

Admission::Options WithTenants(Admission::Options options) {
  if (!options.tenants) options.tenants = [none = std::make_shared<const Tenants>()] { return none; };
  return options;
}

}  // namespace

Admission::Admission(Options options) : options_(WithTenants(std::move(options))) {}

Admission::~Admission() {
  if (const Totals left = totals(); left.requests != 0) {
    ABSL_RAW_LOG(FATAL, "%lld requests have not ended", static_cast<long long>(left.requests));
  }
}

absl::StatusOr<std::shared_ptr<Admission::Ticket>> Admission::Arrive(const std::string& tenant) {
  MutexLock lock(&mutex_);
  if (closed_.contains(tenant)) {
    return RefusedError({.reason = RefusalReason::kTenantErased, .tenant = tenant},
                        absl::StrCat(Quoted(tenant), ": an operator erases it now; retry later"));
  }
  Account* const account = Use(tenant);
  const v1::Tenant& limits = *account->limits;
  absl::Status s = CheckRate(RefusalReason::kTenantRequestRate, "requests_per_second", tenant,
                             limits.requests_per_second(), account->request_rate, 1);
  if (s.ok()) {
    s = CheckCount(RefusalReason::kTenantQueue, "queued_requests", tenant, limits.has_queued_requests(),
                   limits.queued_requests(), account->held.queued_requests, 1);
  }
  if (s.ok()) {
    s = CheckCount(RefusalReason::kTenantRunning, "running_sequences", tenant, limits.has_running_sequences(),
                   limits.running_sequences(), account->held.sequences, 1);
  }
  if (!s.ok()) {
    StopUsing(account, options_.now());
    return s;
  }
  account->request_rate.Take(1);
  ++account->held.requests;
  ++account->held.sequences;
  ++account->held.queued_requests;
  std::shared_ptr<Ticket> ticket(new Ticket(this));
  ticket->admission_->mutex_.AssertHeld();  // which is mutex_
  ticket->account_ = account;
  return ticket;
}

absl::Status Admission::Ticket::Pay(const RequestCost& cost) {
  MutexLock lock(&admission_->mutex_);
  Account* const account = account_;
  if (account == nullptr) return absl::CancelledError("the request has ended");
  admission_->Refresh(account, admission_->options_.now());
  const v1::Tenant& limits = *account->limits;
  Totals& held = account->held;
  const std::string& tenant = account->tenant;
  const auto tokens = static_cast<double>(cost.prompt_tokens + cost.output_tokens);
  // The first sequence is held already.
  absl::Status s =
      CheckCount(RefusalReason::kTenantRunning, "running_sequences", tenant, limits.has_running_sequences(),
                 limits.running_sequences(), held.sequences - 1, cost.sequences);
  if (s.ok()) {
    s = CheckCount(RefusalReason::kTenantQueuedTokens, "queued_tokens", tenant, limits.has_queued_tokens(),
                   limits.queued_tokens(), held.queued_tokens, cost.prompt_tokens);
  }
  if (s.ok()) {
    s = CheckCount(RefusalReason::kTenantCache, "cache_bytes", tenant, limits.has_cache_bytes(), limits.cache_bytes(),
                   held.cache_bytes, cost.cache_bytes);
  }
  if (s.ok()) {
    s = CheckRate(RefusalReason::kTenantTokenRate, "tokens_per_second", tenant, limits.tokens_per_second(),
                  account->token_rate, tokens);
  }
  if (!s.ok()) return s;
  account->token_rate.Take(tokens);
  held.sequences += cost.sequences - 1;
  held.queued_tokens += cost.prompt_tokens;
  held.cache_bytes += cost.cache_bytes;
  cost_ = cost;
  return absl::OkStatus();
}

void Admission::Ticket::OnFirstToken() {
  MutexLock lock(&admission_->mutex_);
  if (account_ == nullptr || !queued_) return;
  queued_ = false;
  --account_->held.queued_requests;
  account_->held.queued_tokens -= cost_.prompt_tokens;
}

void Admission::Ticket::OnEnded(int64_t output_tokens) {
  MutexLock lock(&admission_->mutex_);
  // One that was cancelled while its tokens were replayed has generated none.
  const int64_t generated = std::max<int64_t>(0, output_tokens - cost_.replayed_tokens);
  admission_->End(this, /*return_request=*/false, std::max<int64_t>(0, cost_.output_tokens - generated));
}

void Admission::Ticket::Withdraw() {
  MutexLock lock(&admission_->mutex_);
  admission_->End(this, /*return_request=*/true, cost_.prompt_tokens + cost_.output_tokens);
}

// No other thread has the ticket any more. A ticket that has ended may outlive the Admission.
Admission::Ticket::~Ticket() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (account_ != nullptr) Withdraw();
}

void Admission::End(Ticket* ticket, bool return_request, int64_t return_tokens) {
  ticket->admission_->mutex_.AssertHeld();  // which is mutex_
  Account* const account = std::exchange(ticket->account_, nullptr);
  if (account == nullptr) return;
  const absl::Time now = options_.now();
  Refresh(account, now);
  if (return_request) account->request_rate.Return(1);
  account->token_rate.Return(static_cast<double>(return_tokens));
  Totals& held = account->held;
  --held.requests;
  held.sequences -= ticket->cost_.sequences;
  held.cache_bytes -= ticket->cost_.cache_bytes;
  if (ticket->queued_) {
    --held.queued_requests;
    held.queued_tokens -= ticket->cost_.prompt_tokens;
  }
  StopUsing(account, now);
  ended_.SignalAll();
}

void Admission::Close(const std::string& tenant) {
  MutexLock lock(&mutex_);
  closed_.insert(tenant);
}

void Admission::Reopen(const std::string& tenant) {
  MutexLock lock(&mutex_);
  closed_.erase(closed_.find(tenant));
}

bool Admission::WaitUntilGone(const std::string& tenant, absl::Duration timeout) {
  // Not options_.now: this is about the threads.
  const absl::Time until = SteadyNow() + timeout;
  MutexLock lock(&mutex_);
  while (true) {
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end() || found->second.held.requests == 0) return true;
    const absl::Duration left = until - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    ended_.WaitFor(&mutex_, left);
  }
}

Admission::Account* Admission::Use(const std::string& tenant) {
  const auto [found, is_new] = accounts_.try_emplace(tenant);
  Account& account = found->second;
  if (is_new) {
    account.tenant = tenant;
  } else if (account.held.requests == 0) {
    idle_.erase(account.idle);
  }
  Refresh(&account, options_.now());
  return &account;
}

void Admission::Refresh(Account* account, absl::Time now) const {
  const std::shared_ptr<const Tenants> tenants = options_.tenants();
  const v1::Tenant& limits = tenants->Of(account->tenant);
  account->limits = std::shared_ptr<const v1::Tenant>(tenants, &limits);
  account->request_rate.Refresh(limits.requests_per_second(), BurstOf(limits), now);
  account->token_rate.Refresh(limits.tokens_per_second(), BurstOf(limits), now);
}

void Admission::StopUsing(Account* account, absl::Time now) {
  if (account->held.requests > 0) return;
  account->idle = idle_.insert(idle_.end(), account);
  const auto drop = [this](Account* idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    idle_.erase(idle->idle);
    accounts_.erase(std::string(idle->tenant));
  };
  // Full buckets: the account equals a new one.
  if (account->request_rate.full() && account->token_rate.full()) drop(account);
  while (!idle_.empty()) {
    Account* const oldest = idle_.front();
    Refresh(oldest, now);
    const bool is_fresh = oldest->request_rate.full() && oldest->token_rate.full();
    if (!is_fresh && static_cast<int64_t>(idle_.size()) <= options_.max_idle_accounts) break;
    drop(oldest);
  }
}

Admission::Totals Admission::totals() const {
  MutexLock lock(&mutex_);
  Totals totals = {.accounts = static_cast<int64_t>(accounts_.size())};
  for (const auto& [tenant, account] : accounts_) {
    totals.requests += account.held.requests;
    totals.sequences += account.held.sequences;
    totals.queued_requests += account.held.queued_requests;
    totals.queued_tokens += account.held.queued_tokens;
    totals.cache_bytes += account.held.cache_bytes;
  }
  return totals;
}

}  // namespace berth
