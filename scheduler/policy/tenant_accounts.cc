#include "scheduler/policy/tenant_accounts.h"

#include <algorithm>
#include <utility>

namespace berth {

double TenantAccounts::WeightOf(const std::string& tenant) const {
  const auto found = weights_.by_tenant.find(tenant);
  return found == weights_.by_tenant.end() ? weights_.others : found->second;
}

void TenantAccounts::SetWeights(TenantWeights weights) {
  weights_ = std::move(weights);
  running_weight_ = 0;
  for (auto& [tenant, account] : accounts_) {
    account.weight = WeightOf(tenant);
    if (account.num_running > 0) running_weight_ += account.weight;
  }
}

TenantAccount* TenantAccounts::Open(const std::string& tenant) {
  const auto [it, added] = accounts_.try_emplace(tenant);
  TenantAccount* const account = &it->second;
  if (added) {
    account->name = it->first;
    account->id = TenantId(tenant);
    account->weight = WeightOf(tenant);
  } else if (account->idle_place != decltype(idle_)::kOut) {
    idle_.Remove(account);
  }
  return account;
}

void TenantAccounts::Close(TenantAccount* account) {
  if (!account->waiting.empty() || account->num_running > 0 || account->num_paused > 0) return;
  idle_.Push(account);
  while (idle_.size() > max_idle_) {
    const auto least = accounts_.find(std::string(idle_.top()->name));
    idle_.Remove(&least->second);
    accounts_.erase(least);
  }
}

void TenantAccounts::Charge(TenantAccount* account, double cost) {
  account->counter += cost / account->weight;
  account->lately = std::max(0.0, account->lately + cost);
  highest_ = std::max(highest_, account->counter);
  if (!account->waiting.empty()) by_counter_.Update(account);
}

void TenantAccounts::AddCost(TenantAccount* account, double cost) {
  constexpr double kNewest = 1.0 / 8;
  double& mean = account->sequence_cost;
  mean = mean > 0 ? mean + (cost - mean) * kNewest : cost;
}

void TenantAccounts::AddWaiting(const Sequence& sequence, absl::Time now) {
  TenantAccount* const account = sequence.turn.account;
  sequence.turn.waiting_tokens = sequence.parked ? sequence.num_owed() : sequence.num_to_prefill();
  account->waiting_tokens += sequence.turn.waiting_tokens;
  account->waiting.Push(&sequence);
  if (account->waiting.size() > 1) return;
  account->counter = std::max(account->counter, floor());
  account->waits_since = now;
  by_counter_.Push(account);
  by_wait_.Push(account);
}

void TenantAccounts::AddRunning(TenantAccount* account) {
  if (account->num_running++ == 0) running_weight_ += account->weight;
}

void TenantAccounts::RemoveRunning(TenantAccount* account) {
  if (--account->num_running == 0) running_weight_ -= account->weight;
}

void TenantAccounts::SetHeld(const Sequence& sequence, int64_t bytes) {
  const int64_t change = bytes - std::exchange(sequence.turn.held_bytes, bytes);
  sequence.turn.account->held_bytes += change;
  held_bytes_ += change;
}

void TenantAccounts::RemoveWaiting(const Sequence& sequence, absl::Time now, bool admitted) {
  TenantAccount* const account = sequence.turn.account;
  account->waiting.Remove(&sequence);
  account->waiting_tokens -= sequence.turn.waiting_tokens;
  if (admitted) account->waits_since = now;
  if (account->waiting.empty()) {
    by_counter_.Remove(account);
    by_wait_.Remove(account);
  } else {
    by_counter_.Update(account);
    by_wait_.Update(account);
  }
}

}  // namespace berth
