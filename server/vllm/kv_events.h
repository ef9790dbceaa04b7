// The streams of SubscribeKvEvents: which blocks of a tenant's prefixes later sequences can use. Thread-safe.
//
// One thread follows the prefix index by its log (cache/prefix_log.h), for the tenants that somebody subscribes to. It
// turns changes into numbered batches, and keeps the latest ones for subscribers that come back. It never waits:
//   - If this thread falls behind the engine, it reads the whole tree anew. Subscribers get what differs.
//   - If a subscriber falls behind, its stream ends with DATA_LOSS. It then starts over with a snapshot.
#ifndef BERTH_SERVER_VLLM_KV_EVENTS_H_
#define BERTH_SERVER_VLLM_KV_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "cache/prefix_log.h"
#include "cache/prefix_mirror.h"
#include "cache/spec.h"
#include "scheduler/engine.h"
#include "vllm/common.pb.h"

namespace berth {

using KvBatch = std::shared_ptr<const ::smg::grpc::common::KvEventBatch>;

// What one subscriber has still to be sent. Thread-safe.
class KvSubscription {
 public:
  // `ready` is called when there is something to take and nothing is being taken. It must have Take called until that
  // returns kNothing or kEnd. `max_bytes`: of waiting changes; beyond them the subscription ends.
  KvSubscription(std::function<void()> ready, size_t max_bytes) : ready_(std::move(ready)), max_bytes_(max_bytes) {}

  // A part of a snapshot does not count as a change: it is as large as it is.
  void Push(KvBatch batch, bool snapshot = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops what waits. The first end counts.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  enum class Next { kBatch, kNothing, kEnd };
  // After kEnd, `ready` is not called any more, and status() says why.
  Next Take(KvBatch* batch) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    KvBatch batch;
    size_t bytes = 0;
  };

  const std::function<void()> ready_;
  const size_t max_bytes_;
  mutable Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class KvEvents {
 public:
  struct Options {
    Engine* engine = nullptr;  // outlives this
    CachePlan plan;
    int64_t multiple = 1;  // sequences start at multiples of this
    size_t max_subscribers = 64;
    size_t log_words = 1 << 18;
    size_t history_bytes = 4 << 20;  // of batches that are kept for each tenant
    int64_t batch_blocks = 2048;     // the most that a batch names
    // A tenant is followed on for this long after its last subscriber has left.
    absl::Duration linger = absl::Minutes(1);
    std::function<absl::Time()> now = absl::Now;
  };

  explicit KvEvents(Options options);
  // Ends what Stop would end.
  ~KvEvents();

  // Sends the subscription what changes in the prefixes of `tenant`: after the batch with this number if it is kept
  // still, and else OUT_OF_RANGE. With 0: a snapshot, then what changes. RESOURCE_EXHAUSTED: there are too many
  // subscribers. UNAVAILABLE: this was stopped.
  void Subscribe(std::string tenant, uint64_t start, std::shared_ptr<KvSubscription> subscription)
      ABSL_LOCKS_EXCLUDED(inbox_->mutex);
  // To be called for each one that has ended.
  void Unsubscribe(std::shared_ptr<KvSubscription> subscription) ABSL_LOCKS_EXCLUDED(inbox_->mutex);
  // Ends all subscriptions with UNAVAILABLE, and takes no new ones.
  void Stop() ABSL_LOCKS_EXCLUDED(inbox_->mutex);

 private:
  struct Arrival {
    std::string tenant;
    uint64_t start = 0;
    std::shared_ptr<KvSubscription> subscription;
  };
  // What the engine gave for a watch.
  struct Tree {
    std::string tenant;
    uint64_t watch = 0;
    std::vector<int32_t> words;
  };
  // What others hand to the thread. The engine may do so after this is gone.
  struct Inbox {
    explicit Inbox(size_t log_words) : log(std::make_shared<PrefixLog>(log_words)) {}
    const std::shared_ptr<PrefixLog> log;
    Mutex mutex;
    std::vector<Arrival> arrivals ABSL_GUARDED_BY(mutex);
    std::vector<std::shared_ptr<KvSubscription>> departures ABSL_GUARDED_BY(mutex);
    std::vector<Tree> trees ABSL_GUARDED_BY(mutex);
    size_t num_subscribers ABSL_GUARDED_BY(mutex) = 0;
    bool stopped ABSL_GUARDED_BY(mutex) = false;
  };
  struct Stream {
    explicit Stream(const Options& options) : mirror(options.plan, options.multiple) {}
    PrefixMirror mirror;
    uint64_t watch = 0;       // number of the watch whose tree is awaited, or is the mirror's
    bool is_current = false;  // the mirror follows the log
    uint64_t sequence = 0;    // of the last batch
    uint64_t num_events = 0;
    // The parts of a snapshot have numbers that batches had before. A subscriber that has read some of the parts must
    // not continue with those batches. So none continues below this number.
    uint64_t first_resume = 0;
    std::deque<KvBatch> history;
    size_t history_bytes = 0;
    std::vector<std::shared_ptr<KvSubscription>> subscribers;
    std::vector<Arrival> waiting;  // until is_current
    absl::Time left;               // when the last subscriber left
  };

  void Loop();
  // Takes what there is to take. False: stopped.
  bool Round();
  void Watch(const std::string& tenant, Stream* stream);
  void TakeTrees(std::vector<Tree> trees);
  void SendChanges(Stream* stream);
  void Arrive(Arrival arrival);
  void Attach(const Arrival& arrival, Stream* stream);
  void SendSnapshot(Stream* stream, KvSubscription* subscription) const;
  void Depart(const std::shared_ptr<KvSubscription>& subscription);
  void DropLeft();
  void EndAll();
  void FillStored(const PrefixMirror::Chain& chain, size_t from, size_t to,
                  ::smg::grpc::common::KvBlocksStored* out) const;

  const Options options_;
  const std::shared_ptr<Inbox> inbox_;

  // The thread's.
  std::map<std::string, Stream> streams_;  // by tenant
  std::vector<int32_t> words_;
  uint64_t num_watches_ = 0;

  std::thread thread_;
};

}  // namespace berth

#endif  // BERTH_SERVER_VLLM_KV_EVENTS_H_
