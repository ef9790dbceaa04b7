// What each tenant gets, for the metrics: the tenants that got most, by name, and the others together. So the number of
// series is bounded, however many tenants there are.
#ifndef BERTH_SCHEDULER_POLICY_TENANT_SHARES_H_
#define BERTH_SCHEDULER_POLICY_TENANT_SHARES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "scheduler/policy/tenant_accounts.h"

namespace berth {

struct TenantShare {
  std::string tenant;
  double share = 0;  // of what all tenants were charged lately
  // What the tenant was charged less, for its weight, than the tenant that waits too and was charged most. 0 if it does
  // not wait.
  double deficit = 0;
  absl::Duration wait;  // since something of it was admitted, while it waits
};

struct TenantShares {
  std::vector<TenantShare> largest;  // the largest share first
  size_t num_named = 0;              // of `largest`
  TenantShare others;                // their shares together, the largest deficit and the longest wait
  int64_t num_tenants = 0;           // that have a request which waits or runs
};

// Written by the engine thread, read by any.
class TenantSharesBoard {
 public:
  static constexpr size_t kNumNamed = 10;
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  // What counts as lately: a charge weighs 1/e as much after this.
  static constexpr absl::Duration kLately = absl::Minutes(1);

  TenantSharesBoard();

  // Publishes the shares if kInterval has passed since the last time, or `at_once`. Allocates nothing. Engine thread
  // only.
  void Publish(absl::Time now, bool at_once, TenantAccounts* accounts);
  // The shares as they were published last.
  TenantShares Get() const;

 private:
  void Collect(absl::Time now, TenantAccounts* accounts);

  absl::Time published_ = absl::InfinitePast();
  std::vector<const TenantAccount*> largest_;  // during Collect
  TenantShares next_;                          // what is published next; its strings have room for every name
  mutable Mutex mutex_;
  TenantShares shares_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_POLICY_TENANT_SHARES_H_
