#include "scheduler/policy/tenant_shares.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace berth {
namespace {

// A name has at most 128 characters of at most 4 bytes.
constexpr size_t kMaxNameBytes = 512;

// Names that the metrics give to other things. A tenant of such a name counts among the others.
bool IsReserved(absl::string_view tenant) { return tenant == "other" || tenant == "(none)"; }

TenantShares WithRoom() {
  TenantShares shares;
  shares.largest.resize(TenantSharesBoard::kNumNamed);
  for (TenantShare& share : shares.largest) share.tenant.reserve(kMaxNameBytes);
  return shares;
}

}  // namespace

TenantSharesBoard::TenantSharesBoard() : next_(WithRoom()), shares_(WithRoom()) { largest_.reserve(kNumNamed + 1); }

void TenantSharesBoard::Publish(absl::Time now, bool at_once, TenantAccounts* accounts) {
  if (!at_once && now - published_ < kInterval) return;
  Collect(now, accounts);
  published_ = now;
  MutexLock lock(&mutex_);
  std::swap(next_, shares_);
}

// One pass decays what was charged lately and finds the largest, the next sums the rest up.
void TenantSharesBoard::Collect(absl::Time now, TenantAccounts* accounts) {
  const double decay =
      published_ == absl::InfinitePast() ? 1 : std::exp(-absl::FDivDuration(now - published_, kLately));
  const auto more = [](const TenantAccount* a, const TenantAccount* b) { return a->lately > b->lately; };
  double total = 0;
  double highest = 0;  // counter of those that wait
  largest_.clear();
  accounts->ForEach([&](TenantAccount& account) {
    account.lately *= decay;
    total += account.lately;
    if (!account.waiting.empty()) highest = std::max(highest, account.counter);
    if (account.lately == 0 || IsReserved(account.name)) return;
    if (largest_.size() == kNumNamed && account.lately <= largest_.back()->lately) return;
    largest_.insert(std::upper_bound(largest_.begin(), largest_.end(), &account, more), &account);
    if (largest_.size() > kNumNamed) largest_.pop_back();
  });

  const auto add = [&](const TenantAccount& account, TenantShare* share) {
    if (total > 0) share->share += account.lately / total;
    if (account.waiting.empty()) return;
    share->deficit = std::max(share->deficit, (highest - account.counter) * account.weight);
    share->wait = std::max(share->wait, now - account.waits_since);
  };
  const auto reset = [](TenantShare* share) {
    share->share = 0;
    share->deficit = 0;
    share->wait = absl::ZeroDuration();
  };
  for (TenantShare& share : next_.largest) {
    share.tenant.clear();
    reset(&share);
  }
  reset(&next_.others);
  accounts->ForEach([&](const TenantAccount& account) {
    const auto found = std::find(largest_.begin(), largest_.end(), &account);
    TenantShare* const share = found == largest_.end() ? &next_.others : &next_.largest[found - largest_.begin()];
    if (found != largest_.end()) share->tenant.assign(account.name.data(), account.name.size());
    add(account, share);
  });
  next_.num_named = largest_.size();
  next_.num_tenants = static_cast<int64_t>(accounts->num_busy());
}

TenantShares TenantSharesBoard::Get() const {
  MutexLock lock(&mutex_);
  TenantShares shares = shares_;
  shares.largest.resize(shares.num_named);
  return shares;
}

}  // namespace berth
