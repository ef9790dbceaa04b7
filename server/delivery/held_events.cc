#include "server/delivery/held_events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {

void HeldEvents::OnSaved(const SaveEvent& save) {
  num_saved_ = std::max(num_saved_, save.num_tokens);
  all_saved_ = all_saved_ || save.last;
  if (save.error.ok() || failure_.has_value()) return;
  failure_.emplace();
  failure_->key = save.key;
  failure_->finish = FinishReason::kError;
  failure_->outputs_left = 1;  // the engine does not know of this end
  failure_->error = absl::Status(
      save.error.code(),
      absl::StrCat("deliver_saved_only: the session was not saved, so the output ends here: ", save.error.message()));
}

std::optional<TokenEvent> HeldEvents::Next() {
  while (!held_.empty()) {
    TokenEvent& front = held_.front();
    const bool has_token = front.token >= 0;
    // A replayed event is from the session's file.
    const bool saved = front.replayed || (has_token && num_delivered_ < num_saved_);
    const bool ends = front.finish != FinishReason::kNone;
    if (has_token && saved && (!ends || front.replayed || all_saved_)) {
      ++num_delivered_;
    } else if (front.replayed) {
      // Its end.
    } else if (failure_.has_value() || !all_saved_) {
      break;
    } else if (ends) {
      front.token = RowResult::kNoToken;
    } else {
      held_.pop_front();  // computed, but in no save
      continue;
    }
    std::optional<TokenEvent> event = std::move(front);
    held_.pop_front();
    return event;
  }
  return std::exchange(failure_, std::nullopt);
}

}  // namespace berth
