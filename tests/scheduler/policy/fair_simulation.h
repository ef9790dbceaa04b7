// A scheduler under offered load, on a virtual clock: tenants send requests of random lengths at random times, and a
// step takes a fixed time and more for each token. Says what each tenant got. No model: every token is 1.
#ifndef BERTH_TESTS_SCHEDULER_POLICY_FAIR_SIMULATION_H_
#define BERTH_TESTS_SCHEDULER_POLICY_FAIR_SIMULATION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/policy/policy.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "tests/testing/tiny_cache.h"

namespace berth {

struct SimulatedTenant {
  std::string name;
  double rate = 1;            // requests offered per second
  int64_t max_waiting = 200;  // requests beyond are refused
  int64_t longest_prompt = 40;
  int64_t longest_output = 20;
  int64_t priority = 0;
};

struct TenantReport {
  int64_t offered = 0;  // requests taken
  int64_t ended = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t preemptions = 0;
  absl::Duration longest_wait;  // for the first admission

  // As FairPolicy charges by default.
  double cost() const { return static_cast<double>(prefill_tokens + 2 * decode_tokens); }
};

class FairSimulation {
 public:
  static inline const Scheduler::Options kOptions = {
      .max_running = 16, .max_step_tokens = 64, .prefill_chunk_tokens = 32, .max_sequence_tokens = 2000};

  FairSimulation(SchedulingPolicy* policy, std::vector<SimulatedTenant> tenants, int64_t arena_blocks = 4000,
                 uint32_t seed = 1)
      : tenants(std::move(tenants)), random_(seed), tiny_({StaticLayer()}, arena_blocks / 2) {
    Scheduler::Options options = kOptions;
    options.policy = policy;
    scheduler_ = *Scheduler::Create(tiny_.cache.get(), options);
    for (const SimulatedTenant& tenant : this->tenants) next_[tenant.name] = now;
  }

  // Offers load and steps for this much virtual time.
  void Run(absl::Duration time) {
    const absl::Time end = now + time;
    while (now < end) {
      for (const SimulatedTenant& tenant : tenants) Offer(tenant);
      if (scheduler_->empty()) {
        now += absl::Milliseconds(1);
      } else {
        Step();
      }
    }
  }
  // Forgets what was counted, as after a warm-up.
  void ResetReports() { reports.clear(); }

  double Cost(const std::string& tenant) { return reports[tenant].cost(); }
  double TotalCost() const {
    double total = 0;
    for (const auto& [name, report] : reports) total += report.cost();
    return total;
  }
  double Share(const std::string& tenant) { return Cost(tenant) / TotalCost(); }
  // Jain's index of what the tenants got: 1 if all got the same, 1 / n if one got everything.
  double Jain() {
    double sum = 0;
    double squares = 0;
    for (const SimulatedTenant& tenant : tenants) {
      sum += Cost(tenant.name);
      squares += Cost(tenant.name) * Cost(tenant.name);
    }
    return sum * sum / (static_cast<double>(tenants.size()) * squares);
  }

  void Add(const SimulatedTenant& tenant, int64_t prompt, int64_t output) {
    Request request;
    request.key = ++last_key_;
    request.sampling.seed = request.key;  // by which rows name their request
    request.prompt.assign(prompt, 1);
    request.max_tokens = output;
    request.cache_salt = tenant.name;
    request.priority = tenant.priority;
    request.arrival = now;
    tenant_of_[request.key] = tenant.name;
    ++waiting_[tenant.name];
    ++reports[tenant.name].offered;
    scheduler_->Add(std::move(request));
  }

  void Step() {
    const StepPlan& plan = scheduler_->Plan(now);
    StepResult result;
    result.rows.resize(plan.rows.size());
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const StepRow& row = plan.rows[i];
      const RequestKey key = row.sampling->seed;
      TenantReport& report = reports[tenant_of_[key]];
      (static_cast<int64_t>(i) < plan.num_decode_rows ? report.decode_tokens : report.prefill_tokens) +=
          row.num_tokens();
      result.rows[i].token = 1;
      if (started_.insert({key, now}).second) {
        order.push_back(key);
        --waiting_[tenant_of_[key]];
      }
    }
    num_tokens += plan.num_tokens;
    ++num_steps;
    now += absl::Milliseconds(5) + absl::Microseconds(50) * plan.num_tokens;
    scheduler_->Commit(result, now, &events_);
    for (const TokenEvent& event : events_) {
      if (event.finish == FinishReason::kNone) continue;
      TenantReport& report = reports[tenant_of_[event.key]];
      ++report.ended;
      report.preemptions += event.times.num_preemptions;
      report.longest_wait = std::max(report.longest_wait, event.times.first_scheduled - event.times.arrival);
    }
    events_.clear();
  }

  bool empty() const { return scheduler_->empty(); }
  const Scheduler& scheduler() const { return *scheduler_; }

  std::vector<SimulatedTenant> tenants;  // may change between runs
  std::map<std::string, TenantReport> reports;
  std::vector<RequestKey> order;  // in which requests first ran
  absl::Time now = absl::UnixEpoch();
  int64_t num_steps = 0;
  int64_t num_tokens = 0;

 private:
  void Offer(const SimulatedTenant& tenant) {
    absl::Time& next = next_[tenant.name];
    while (tenant.rate > 0 && next <= now) {
      const int64_t prompt = 1 + static_cast<int64_t>(random_()) % tenant.longest_prompt;
      const int64_t output = 1 + static_cast<int64_t>(random_()) % tenant.longest_output;
      if (waiting_[tenant.name] < tenant.max_waiting) Add(tenant, prompt, output);
      next += absl::Seconds(std::exponential_distribution<double>(tenant.rate)(random_));
    }
  }

  std::mt19937 random_;
  TinyCache tiny_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<TokenEvent> events_;
  std::map<std::string, absl::Time> next_;  // arrival
  std::map<std::string, int64_t> waiting_;
  std::map<RequestKey, std::string> tenant_of_;
  std::map<RequestKey, absl::Time> started_;
  RequestKey last_key_ = 0;
};

}  // namespace berth

#endif  // BERTH_TESTS_SCHEDULER_POLICY_FAIR_SIMULATION_H_
