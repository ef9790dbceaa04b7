// Holds a request's events back until what they tell is saved: for deliver_saved_only. A token may go once a save that
// has it is on the disk, and the end once the last save is. What the last save has not is never delivered.
//
// Delivery thread only.
#ifndef BERTH_SERVER_DELIVERY_HELD_EVENTS_H_
#define BERTH_SERVER_DELIVERY_HELD_EVENTS_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "scheduler/request.h"

namespace berth {

class HeldEvents {
 public:
  // Events of the request's only output, in order.
  void Add(const TokenEvent& event) { held_.push_back(event); }
  // Events and saves may come in any order.
  void OnSaved(const SaveEvent& save);

  // Takes the next event that may go. After a failed save, that is an end with the save's error, which is not the
  // engine's: an output is left there.
  std::optional<TokenEvent> Next();

 private:
  std::deque<TokenEvent> held_;
  int64_t num_delivered_ = 0;  // tokens
  int64_t num_saved_ = 0;
  bool all_saved_ = false;  // no other save follows
  std::optional<TokenEvent> failure_;
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_HELD_EVENTS_H_
