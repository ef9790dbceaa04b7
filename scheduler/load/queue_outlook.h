// What a new request finds before it: what runs and waits, what its tenant has waiting, and the times that the last
// steps took. Not thread-safe.
#ifndef BERTH_SCHEDULER_LOAD_QUEUE_OUTLOOK_H_
#define BERTH_SCHEDULER_LOAD_QUEUE_OUTLOOK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/load/queue_limits.h"
#include "scheduler/load/wait_estimate.h"

namespace berth {

class QueueOutlook {
 public:
  explicit QueueOutlook(const StepLimits& step) : step_(step) {}

  // Takes what the scheduler knows. `tenants`: what waits of each tenant, which is swapped for the vector of before;
  // read only if `by_tenant`, that is, if requests are not admitted in order of arrival.
  void Update(const Backlog& backlog, const WaitRates& rates, bool by_tenant, std::vector<TenantQueue>* tenants);
  // Adds a request that the scheduler does not know yet. `tenant` is its cache_salt.
  void Add(const std::string& tenant, int64_t num_tokens, int64_t num_sequences);

  // Without the counts of the whole queue, which are not kept here.
  QueueState Before(const std::string& tenant, int64_t priority) const;

  // The predicted wait of a request that goes behind all that wait.
  absl::Duration Wait() const { return PredictWait(rates_, step_, backlog_, /*num_sequences=*/1); }
  // The predicted wait if nothing else of its tenant waits.
  absl::Duration WaitOfNewTenant() const;

 private:
  const StepLimits step_;
  Backlog backlog_;
  WaitRates rates_;
  bool by_tenant_ = false;
  std::vector<TenantQueue> tenants_;  // the parts of backlog_ that wait, if by_tenant_
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_QUEUE_OUTLOOK_H_
