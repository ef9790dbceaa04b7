// Carries the engine's events to the requests' outputs. The engine's thread hands over a step in one move under one
// lock; this class's own thread looks the requests up, detokenises and starts the writes.
//
// Thread-safe. Outlives the engine; its destructor delivers what was handed over.
#ifndef BERTH_SERVER_DELIVERY_OUTPUT_DISPATCHER_H_
#define BERTH_SERVER_DELIVERY_OUTPUT_DISPATCHER_H_

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "scheduler/event_sink.h"
#include "server/delivery/request_output.h"

namespace berth {

class OutputDispatcher final : public EventSink {
 public:
  struct Options {
    std::function<void(const StepStats&)> on_step = [](const StepStats&) {};  // on the engine's thread: must not block
    std::function<absl::Time()> now = SteadyNow;
  };

  explicit OutputDispatcher(Options options);
  ~OutputDispatcher() override;
  OutputDispatcher(const OutputDispatcher&) = delete;
  OutputDispatcher& operator=(const OutputDispatcher&) = delete;

  // From now on the key's events go to `output`, until it has ended. Call before Engine::Submit.
  void Register(std::shared_ptr<RequestOutput> output) ABSL_LOCKS_EXCLUDED(outputs_mutex_);
  // For a request that the engine refused.
  void Unregister(RequestKey key) ABSL_LOCKS_EXCLUDED(outputs_mutex_);

  // Engine's thread; or any thread, for a request that the engine does not know.
  void Deliver(std::vector<TokenEvent>* events) override ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // The session store's thread.
  void DeliverSave(SaveEvent save) ABSL_LOCKS_EXCLUDED(queue_mutex_);
  void OnStep(const StepStats& stats) override;

 private:
  // What one step left behind, or a save.
  struct Batch {
    std::vector<TokenEvent> events;
    absl::Time time;
    std::optional<SaveEvent> save;
  };

  void Loop() ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // Waits for work and swaps all of it for `batches`, which are done. False: closed, and nothing is left.
  bool Take(std::vector<Batch>* batches) ABSL_LOCKS_EXCLUDED(queue_mutex_);
  void Route(const Batch& batch) ABSL_LOCKS_EXCLUDED(outputs_mutex_);
  void RouteSave(const SaveEvent& save, absl::Time time) ABSL_LOCKS_EXCLUDED(outputs_mutex_);

  const Options options_;

  Mutex queue_mutex_;
  CondVar queue_filled_;
  std::vector<Batch> queue_ ABSL_GUARDED_BY(queue_mutex_);
  std::vector<std::vector<TokenEvent>> spare_ ABSL_GUARDED_BY(queue_mutex_);  // empty, with room: for the engine
  bool closed_ ABSL_GUARDED_BY(queue_mutex_) = false;

  Mutex outputs_mutex_;
  std::unordered_map<RequestKey, std::shared_ptr<RequestOutput>> outputs_ ABSL_GUARDED_BY(outputs_mutex_);

  std::vector<std::shared_ptr<RequestOutput>> found_;  // of Route; keeps its storage

  std::thread thread_;  // last: sees everything above built
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_OUTPUT_DISPATCHER_H_
