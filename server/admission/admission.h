// Decides at once whether a tenant may have one more request: its rates, and what it may hold at a time (--tenants).
// The limits of the whole server are the engine's (scheduler/load/queue_limits.h). Thread-safe. Nothing waits here, and
// the engine's thread never comes here.
//
// A request takes a ticket when it arrives, before its text is tokenised, and tells the ticket its cost once the tokens
// are known. The ticket gives everything back: what the request held when it ends, and what it did not use of the
// tenant's tokens. A refused request leaves nothing behind.
//
// Rates are token buckets, which fill at the rate and hold what it gives in burst_seconds, but at least 1. A request
// that costs more than a bucket holds needs a full bucket, and leaves it in debt.
//
// Invariants:
//   - Each account is what its tickets hold, plus its two buckets.
//   - An account without tickets is dropped as soon as its buckets are full, since it then equals a new one. At most
//     max_idle_accounts others are kept, so inventing tenants does not fill the memory.
#ifndef BERTH_SERVER_ADMISSION_ADMISSION_H_
#define BERTH_SERVER_ADMISSION_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "scheduler/refusal.h"
#include "server/admission/tenants.h"
#include "server/admission/token_bucket.h"

namespace berth {

// The most that a request can take.
struct RequestCost {
  int64_t sequences = 1;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;    // of all outputs, without those that are replayed
  int64_t replayed_tokens = 0;  // of a resumed session's output: they are sent again and cost nothing
  int64_t cache_bytes = 0;      // of all sequences at their longest, without shared prefixes
};

class Admission {
  struct Account;

 public:
  struct Options {
    std::function<std::shared_ptr<const Tenants>()> tenants;  // TenantsFile::current; empty: no limits
    int64_t max_idle_accounts = 10000;
    std::function<absl::Time()> now = SteadyNow;
  };

  class Ticket {
   public:
    // Withdraws what is left.
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // Takes the cost, or nothing: RESOURCE_EXHAUSTED with a Refusal, when the tenant is at a limit. Call it once.
    absl::Status Pay(const RequestCost& cost);
    // The request waits no more.
    void OnFirstToken();
    // The request has ended with `output_tokens`, replayed ones included. Nothing may follow.
    void OnEnded(int64_t output_tokens);
    // The request was refused elsewhere: gives everything back, as if it had not come. Only a Withdraw may follow.
    void Withdraw();

   private:
    friend class Admission;
    explicit Ticket(Admission* admission) : admission_(admission) {}

    Admission* const admission_;
    Admission::Account* account_ ABSL_GUARDED_BY(admission_->mutex_) = nullptr;  // null: it holds nothing any more
    RequestCost cost_ ABSL_GUARDED_BY(admission_->mutex_);                       // held; tokens are 0 before Pay
    bool queued_ ABSL_GUARDED_BY(admission_->mutex_) = true;
  };

  // What all accounts hold together; all 0 when no request is under way.
  struct Totals {
    int64_t accounts = 0;
    int64_t requests = 0;
    int64_t sequences = 0;
    int64_t queued_requests = 0;
    int64_t queued_tokens = 0;
    int64_t cache_bytes = 0;

    friend bool operator==(const Totals&, const Totals&) = default;
  };

  explicit Admission(Options options);
  // REQUIRES: every ticket has ended, or has been destroyed.
  ~Admission();

  // Takes a request and its first sequence into the tenant's account. RESOURCE_EXHAUSTED with a Refusal: the tenant is
  // at a limit.
  absl::StatusOr<std::shared_ptr<Ticket>> Arrive(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);

  // While a tenant is closed, its requests are refused; it is being erased. REQUIRES of Reopen: Close was called.
  void Close(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);
  void Reopen(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the tenant has no request, or the time has passed. True when it has none.
  bool WaitUntilGone(const std::string& tenant, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  Totals totals() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Account {
    std::string tenant;
    std::shared_ptr<const v1::Tenant> limits;  // as of the account's last use
    TokenBucket request_rate;
    TokenBucket token_rate;
    Totals held;                         // `accounts` is unused
    std::list<Account*>::iterator idle;  // its place in idle_, if it holds no request
  };

  // The tenant's account as of now, which is not in idle_; a new one if there is none.
  Account* Use(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads the limits again, and fills the buckets for the time that has passed.
  void Refresh(Account* account, absl::Time now) const;
  // Lists the account in idle_ if it holds no request, and drops idle accounts that are full or too many.
  void StopUsing(Account* account, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the ticket, and returns its request and `return_tokens` to the tenant's rates. Does nothing for one that has
  // ended.
  void End(Ticket* ticket, bool return_request, int64_t return_tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  CondVar ended_;  // a request
  std::multiset<std::string> closed_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);
  std::list<Account*> idle_ ABSL_GUARDED_BY(mutex_);  // longest idle first
};

}  // namespace berth

#endif  // BERTH_SERVER_ADMISSION_ADMISSION_H_
