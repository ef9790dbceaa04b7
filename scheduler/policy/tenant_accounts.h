// The accounts of FairPolicy: what each tenant was given, and which of its sequences wait. Engine thread only.
//
// A tenant's counter is the cost of what it was given, divided by its weight. The tenant that waits with the least
// counter is furthest behind its share. A tenant that begins to wait is lifted to the least counter of those that wait
// already, so time without demand earns no credit. While none waits, every tenant gets all it asks for: then it is
// lifted to the highest counter of all, and what others used of idle capacity is forgotten.
//
// Invariants:
//   - an account is in the two orders of waiting tenants exactly while a sequence of it waits;
//   - of the accounts that have nothing waiting, running or paused, max_idle are kept: those with the highest counters.
//   What is lost is
//     only the debt of the least, and what is at floor() or below would be lifted anyway.
#ifndef BERTH_SCHEDULER_POLICY_TENANT_ACCOUNTS_H_
#define BERTH_SCHEDULER_POLICY_TENANT_ACCOUNTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/load/wait_estimate.h"
#include "scheduler/policy/indexed_heap.h"
#include "scheduler/sequence.h"

namespace berth {

// A tenant's waiting sequences, in the order in which it wants them.
struct TurnTraits {
  static size_t& Place(const Sequence& sequence) { return sequence.turn.place; }
  static bool Less(const Sequence& a, const Sequence& b) {
    return std::tie(a.turn.due, a.turn.number) < std::tie(b.turn.due, b.turn.number);
  }
};

// Relative shares of tenants, each above 0.
struct TenantWeights {
  std::unordered_map<std::string, double> by_tenant;
  double others = 1;  // of each other tenant
};

struct TenantAccount {
  absl::string_view name;
  uint64_t id = 0;  // TenantId of the name
  double weight = 1;
  double counter = 0;
  double lately = 0;  // charged in the last time; TenantSharesBoard decays it
  IndexedHeap<const Sequence, TurnTraits> waiting;
  int64_t waiting_tokens = 0;  // that these have to prefill
  double sequence_cost = 0;    // mean of what its sequences were charged; the newest weighs 1/8. 0: none has ended
  absl::Time waits_since;      // while it waits: the last admission of it, or when it began to wait
  int64_t num_running = 0;     // sequences
  int64_t num_paused = 0;      // sequences
  int64_t held_bytes = 0;      // of their leases
  int64_t prefill_wanted = 0;  // tokens that its running sequences want of the step being planned
  int64_t prefill_left = 0;    // tokens that they may still have of it
  size_t counter_place = ~size_t{0};
  size_t wait_place = ~size_t{0};
  size_t idle_place = ~size_t{0};

  double excess() const { return static_cast<double>(held_bytes) / weight; }
};

class TenantAccounts {
 public:
  explicit TenantAccounts(size_t max_idle) : max_idle_(max_idle) {}

  // Counters stay, so a new weight counts from now on.
  void SetWeights(TenantWeights weights);

  // Returns the tenant's account; a new one if it has none. Valid until Close.
  TenantAccount* Open(const std::string& tenant);
  // Drops the account, or sets it aside, if nothing of it waits, runs or is paused.
  void Close(TenantAccount* account);

  void Charge(TenantAccount* account, double cost);
  // A sequence that ran has ended, and was charged `cost` in all.
  void AddCost(TenantAccount* account, double cost);
  void AddWaiting(const Sequence& sequence, absl::Time now);
  // `admitted`: it begins to run. Else it ends.
  void RemoveWaiting(const Sequence& sequence, absl::Time now, bool admitted);

  bool any_waiting() const { return !by_counter_.empty(); }
  // REQUIRES, as for the next: any_waiting().
  TenantAccount* furthest_behind() const { return by_counter_.top(); }
  TenantAccount* waiting_longest() const { return by_wait_.top(); }
  // A sequence of the tenant begins or ceases to run.
  void AddRunning(TenantAccount* account);
  void RemoveRunning(TenantAccount* account);
  // Counts what the sequence holds now of the cache.
  void SetHeld(const Sequence& sequence, int64_t bytes);
  // Whether the tenant holds its share of what running sequences hold, by its weight among their tenants, or more.
  bool FillsItsShare(const TenantAccount& account) const {
    return static_cast<double>(account.held_bytes) * running_weight_ >=
           static_cast<double>(held_bytes_) * account.weight * 0.999;
  }

  // What a tenant that begins to wait is lifted to.
  double floor() const { return by_counter_.empty() ? highest_ : by_counter_.top()->counter; }

  size_t num_busy() const { return accounts_.size() - idle_.size(); }  // they have a sequence
  size_t num_accounts() const { return accounts_.size(); }
  template <typename F>
  void ForEachWaiting(F f) const {
    for (const TenantAccount* account : by_counter_.elements()) f(*account);
  }
  template <typename F>
  void ForEach(F f) {
    for (auto& [tenant, account] : accounts_) f(account);
  }

 private:
  struct CounterTraits {
    static size_t& Place(TenantAccount& account) { return account.counter_place; }
    static bool Less(const TenantAccount& a, const TenantAccount& b) {
      return std::tie(a.counter, a.waits_since) < std::tie(b.counter, b.waits_since);
    }
  };
  struct WaitTraits {
    static size_t& Place(TenantAccount& account) { return account.wait_place; }
    static bool Less(const TenantAccount& a, const TenantAccount& b) { return a.waits_since < b.waits_since; }
  };
  struct IdleTraits {
    static size_t& Place(TenantAccount& account) { return account.idle_place; }
    static bool Less(const TenantAccount& a, const TenantAccount& b) { return a.counter < b.counter; }
  };

  double WeightOf(const std::string& tenant) const;

  const size_t max_idle_;
  TenantWeights weights_;
  std::unordered_map<std::string, TenantAccount> accounts_;
  IndexedHeap<TenantAccount, CounterTraits> by_counter_;
  IndexedHeap<TenantAccount, WaitTraits> by_wait_;
  IndexedHeap<TenantAccount, IdleTraits> idle_;
  double highest_ = 0;         // no counter was ever higher
  double running_weight_ = 0;  // of the tenants of running sequences
  int64_t held_bytes_ = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_POLICY_TENANT_ACCOUNTS_H_
