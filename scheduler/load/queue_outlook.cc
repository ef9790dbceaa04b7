#include "scheduler/load/queue_outlook.h"

#include <algorithm>
#include <utility>

namespace berth {

void QueueOutlook::Update(const Backlog& backlog, const WaitRates& rates, bool by_tenant,
                          std::vector<TenantQueue>* tenants) {
  backlog_ = backlog;
  rates_ = rates;
  by_tenant_ = by_tenant;
  std::swap(tenants_, *tenants);
  if (!by_tenant) tenants_.clear();
}

void QueueOutlook::Add(const std::string& tenant, int64_t num_tokens, int64_t num_sequences) {
  backlog_.prefill_tokens += num_tokens;
  backlog_.num_sequences += num_sequences;
  if (!by_tenant_) return;
  const auto of_tenant = [id = TenantId(tenant)](const TenantQueue& queue) { return queue.tenant == id; };
  auto queue = std::find_if(tenants_.begin(), tenants_.end(), of_tenant);
  if (queue == tenants_.end()) {
    const auto less = [](const TenantQueue& a, const TenantQueue& b) { return a.counter < b.counter; };
    const auto least = std::min_element(tenants_.begin(), tenants_.end(), less);
    const double level = least == tenants_.end() ? 0 : least->counter;
    queue = tenants_.insert(tenants_.end(), {.tenant = TenantId(tenant), .counter = level});
  }
  queue->num_tokens += num_tokens;
  queue->num_sequences += num_sequences;
}

QueueState QueueOutlook::Before(const std::string& tenant, int64_t priority) const {
  return {.backlog = BacklogBefore(backlog_, tenants_, TenantId(tenant), priority), .rates = rates_, .step = step_};
}

absl::Duration QueueOutlook::WaitOfNewTenant() const {
  const Backlog before = BacklogBefore(backlog_, tenants_, kNewTenant, /*priority=*/0);
  return PredictWait(rates_, step_, before, /*num_sequences=*/1);
}

}  // namespace berth
