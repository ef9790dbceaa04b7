#include "scheduler/load/wait_estimate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace berth {
namespace {

constexpr double kOlder = 7.0 / 8;  // weight of what was measured before

// The time of `num_tokens` tokens in steps of at most `step_tokens`.
double PrefillSeconds(const WaitRates& rates, double num_tokens, int64_t step_tokens) {
  const double steps = std::ceil(num_tokens / static_cast<double>(std::max<int64_t>(1, step_tokens)));
  return steps * rates.decode_step_seconds + num_tokens * rates.prefill_token_seconds;
}

// The mean of the costs that are known. If none is, all sequences cost the same.
double MeanCost(absl::Span<const TenantQueue> queues) {
  double sum = 0;
  double known = 0;
  for (const TenantQueue& queue : queues) {
    sum += queue.sequence_cost;
    known += queue.sequence_cost > 0 ? 1 : 0;
  }
  return known > 0 ? sum / known : 1;
}

}  // namespace

uint64_t TenantId(const std::string& tenant) {
  const uint64_t id = std::hash<std::string>()(tenant);
  return id == kNewTenant ? id + 1 : id;
}

// The tenant's counter, once what it has waiting is served, is the level up to which others are served before it.
// Whatever is not sure to be before the request is left out: it is better to accept a request that waits too long than
// to refuse one that would not.
Backlog BacklogBefore(Backlog all, absl::Span<const TenantQueue> queues, uint64_t tenant, int64_t priority) {
  const double mean_cost = MeanCost(queues);
  const auto cost = [mean_cost](const TenantQueue& queue) {
    return queue.sequence_cost > 0 ? queue.sequence_cost : mean_cost;
  };
  double level = std::numeric_limits<double>::infinity();  // of a tenant that begins to wait
  for (const TenantQueue& queue : queues) level = std::min(level, queue.counter);
  const auto own = std::find_if(queues.begin(), queues.end(), [&](const TenantQueue& q) { return q.tenant == tenant; });
  const int64_t num_own = own == queues.end() || priority > 0 ? 0 : own->num_sequences;
  if (own != queues.end()) level = own->counter + static_cast<double>(num_own) * cost(*own) / own->weight;
  for (const TenantQueue& queue : queues) {
    const double served = std::max(0.0, (level - queue.counter) * queue.weight / cost(queue));
    const int64_t before = queue.tenant == tenant
                               ? num_own
                               : static_cast<int64_t>(std::min(served, static_cast<double>(queue.num_sequences)));
    const int64_t after = queue.num_sequences - before;
    all.num_sequences -= after;
    all.prefill_tokens -= queue.num_tokens * after / queue.num_sequences;
  }
  // Queues count what a swapped-out cache spares.
  all.prefill_tokens = std::max<int64_t>(0, all.prefill_tokens);
  return all;
}

absl::Duration PredictWait(const WaitRates& rates, const StepLimits& limits, const Backlog& before,
                           int64_t num_sequences) {
  const double computed = static_cast<double>(before.prefill_tokens) * (1 - rates.cached_ratio);
  const int64_t places = std::max<int64_t>(1, before.num_places);
  // A request of more sequences than there are places waits for all of them.
  const int64_t must_end =
      std::min(before.num_sequences, std::max<int64_t>(0, before.num_sequences + num_sequences - places));
  const double for_place = static_cast<double>(must_end) * rates.sequence_seconds / static_cast<double>(places);
  return absl::Seconds(std::max(PrefillSeconds(rates, computed, limits.step_tokens), for_place));
}

absl::Duration PredictPrefill(const WaitRates& rates, const StepLimits& limits, int64_t num_tokens, bool shares) {
  const double computed = static_cast<double>(num_tokens) * (shares ? 1 - rates.cached_ratio : 1);
  return absl::Seconds(PrefillSeconds(rates, computed, limits.chunk_tokens));
}

void WaitEstimator::MiddleRatio::Add(double above, double below) {
  terms_[num_added_++ % kSize] = {.above = above, .below = below};
}

double WaitEstimator::MiddleRatio::value() const {
  const int64_t count = std::min(num_added_, kSize);
  std::array<Term, kSize> sorted = terms_;
  std::sort(sorted.begin(), sorted.begin() + count,
            [](const Term& a, const Term& b) { return a.above * b.below < b.above * a.below; });
  Term sum;
  for (int64_t i = count / 4; i < count - (count + 2) / 4; ++i) {
    sum.above += sorted[i].above;
    sum.below += sorted[i].below;
  }
  return sum.below > 0 ? sum.above / sum.below : 0;
}

void WaitEstimator::FadingRatio::Add(double more_above, double more_below) {
  above = above * kOlder + more_above;
  below = below * kOlder + more_below;
}

void WaitEstimator::OnStep(absl::Duration time, int64_t prefill_tokens, int64_t decode_rows) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(time));  // the clock may be set back
  if (prefill_tokens > 0) {
    prefill_.Add(std::max(0.0, seconds - rates_.decode_step_seconds), static_cast<double>(prefill_tokens));
    rates_.prefill_token_seconds = prefill_.value();
  } else if (decode_rows > 0) {
    decode_.Add(seconds, 1);
    rates_.decode_step_seconds = decode_.value();
  }
}

void WaitEstimator::OnSequenceEnd(absl::Duration time) {
  sequence_.Add(std::max(0.0, absl::ToDoubleSeconds(time)), 1);
  rates_.sequence_seconds = sequence_.value();
}

void WaitEstimator::OnPrefixes(int64_t queried_tokens, int64_t hit_tokens) {
  if (queried_tokens == queried_tokens_) return;
  cached_.Add(static_cast<double>(hit_tokens - hit_tokens_), static_cast<double>(queried_tokens - queried_tokens_));
  rates_.cached_ratio = std::clamp(cached_.value(), 0.0, 1.0);
  queried_tokens_ = queried_tokens;
  hit_tokens_ = hit_tokens;
}

}  // namespace berth
