// Where the engine hands over what it produces.
#ifndef BERTH_SCHEDULER_EVENT_SINK_H_
#define BERTH_SCHEDULER_EVENT_SINK_H_

#include <vector>

#include "scheduler/load/engine_load.h"
#include "scheduler/request.h"

namespace berth {

// Called on the engine thread: must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // `events` may be swapped with an empty vector to take its storage.
  virtual void Deliver(std::vector<TokenEvent>* events) = 0;
  virtual void OnStep(const StepStats& stats) = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_EVENT_SINK_H_
