// What clients hand to the engine's thread. Plain data; the engine guards it.
#ifndef BERTH_SCHEDULER_ENGINE_INBOX_H_
#define BERTH_SCHEDULER_ENGINE_INBOX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cache/prefix_log.h"
#include "scheduler/load/scheduler_counts.h"
#include "scheduler/request.h"
#include "scheduler/tiers/prefix_tier.h"

namespace berth {

// Called when prefixes are dropped; see Engine::DropPrefixes.
using DropCallback = std::function<void(const FreedBytes& freed, const absl::Status& status)>;
// Given the prefixes that are watched; see Engine::WatchPrefixes.
using WatchCallback = std::function<void(std::vector<int32_t> words)>;

struct EngineInbox {
  struct Cancellation {
    RequestKey key;
    int32_t output;
    FinishReason reason;
  };
  struct Drop {
    std::optional<std::string> salt;
    DropCallback done;
  };
  struct Watch {
    std::string salt;
    std::shared_ptr<PrefixLog> log;  // null: ends the watch
    WatchCallback done;
  };

  std::vector<Request> requests;
  std::vector<Cancellation> cancels;
  std::vector<std::pair<RequestKey, bool>> pauses;  // true: pause, false: unpause
  std::vector<RequestKey> saves;
  std::vector<Drop> drops;
  std::vector<Watch> watches;
  int64_t num_tokens = 0;  // of the requests' prompts, for encoder and decoder

  // Whether there is something that cannot wait for the next step.
  bool urgent() const {
    return !requests.empty() || !cancels.empty() || !pauses.empty() || !saves.empty() || !drops.empty() ||
           !watches.empty();
  }

  // Adds the requests, which no step has seen, to those that wait.
  void AddTo(SchedulerCounts* counts) const {
    const auto num_requests = static_cast<int64_t>(requests.size());
    counts->num_waiting += num_requests;
    counts->num_new += num_requests;
    counts->waiting_tokens += num_tokens;
  }
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_ENGINE_INBOX_H_
