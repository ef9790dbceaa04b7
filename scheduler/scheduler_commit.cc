// What a step's results do to the sequences that ran.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/output_group.h"
#include "scheduler/scheduler.h"

namespace berth {

void Scheduler::Commit(const StepResult& result, absl::Time now, std::vector<TokenEvent>* events) {
  FinishCopies(now);
  // What prefilling takes; steps that mostly decode say little of it.
  if (2 * plan_.num_decode_rows <= plan_.num_tokens) suspender_.OnPrefill(plan_.num_tokens, now - plan_start_);
  bool any_finished = false;
  for (size_t i = 0; i < planned_.size(); ++i) {
    Sequence& sequence = *planned_[i];
    if (sequence.num_prompt_counted == 0) counts_.prompt_tokens += sequence.num_encoder_tokens();
    const int64_t num_prompt = std::min(sequence.num_computed(), sequence.prompt_length);
    counts_.prompt_tokens += std::max<int64_t>(0, num_prompt - sequence.num_prompt_counted);
    sequence.num_prompt_counted = std::max(sequence.num_prompt_counted, num_prompt);
    if (sequence.finished()) continue;  // with another output of its request
    if (!plan_.rows[i].sample) {
      Publish(&sequence, /*at_end=*/false);
    } else if (sequence.group != nullptr && sequence.group->search != nullptr) {
      AcceptBeam(plan_.rows[i], result.rows[i], &sequence, now, events);
    } else {
      AcceptRow(result.rows[i], &sequence, now, events);
    }
    any_finished = any_finished || sequence.finished();
  }
  if (any_finished) RemoveFinished();
  saver_.HandOver(running_, waiting_);
}

void Scheduler::AcceptRow(const RowResult& row, Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events) {
  const std::vector<int32_t>& drafts = sequence->drafts;
  const int64_t num_drafts = static_cast<int64_t>(drafts.size());
  int64_t right = 0;  // drafts that the model chose too, up to one that ends the output
  while (right < num_drafts && row.verified_tokens[right] == drafts[right] && !sequence->StopsAt(drafts[right])) {
    ++right;
  }
  // The cache keeps what the right drafts left there; the first wrong one and all after it go.
  if (right < num_drafts) sequence->lease.Crop(sequence->num_tokens() + right);
  counts_.accepted_draft_tokens += right;
  for (int64_t i = 0; i < right; ++i) Accept(drafts[i], row, sequence, now, &events->emplace_back());
  sequence->drafts.clear();
  const int32_t token = right < num_drafts ? row.verified_tokens[right] : row.token;
  if (absl::Status error = CheckToken(token, *sequence); !error.ok()) {
    sequence->lease.Withdraw();  // what it computed is not for others
    EndRequest(FinishReason::kError, error, now, sequence, events);
    return;
  }
  Publish(sequence, /*at_end=*/false);
  Accept(token, row, sequence, now, &events->emplace_back());
  if (!sequence->finished()) Rewind(sequence);
}

absl::Status Scheduler::CheckToken(int32_t token, const Sequence& sequence) const {
  if (token >= 0) return absl::OkStatus();
  const absl::string_view what =
      token == RowResult::kBadLogits ? "the model gave logits that are no numbers" : "the model chose no token";
  return absl::InternalError(absl::StrCat(what, " at position ", sequence.num_tokens()));
}

void Scheduler::Accept(int32_t token, const RowResult& row, Sequence* sequence, absl::Time now, TokenEvent* event) {
  sequence->tokens.push_back(token);
  ++counts_.generation_tokens;
  event->key = sequence->request.key;
  event->output = sequence->output;
  event->token = token;
  event->logprob = row.logprob;
  event->top = row.top;
  if (sequence->request.saved && sequence->request.sampling.num_logprobs >= 0) {
    sequence->logprobs.push_back({.logprob = row.logprob, .top = row.top});
  }
  if (sequence->times.first_token == absl::InfinitePast()) {
    sequence->times.first_token = now;
    event->times = sequence->times;
    event->num_cached = sequence->num_cached;
  }
  if (sequence->StopsAt(token)) {
    event->stop_token = token;
    Finish(FinishReason::kStop, absl::OkStatus(), now, sequence, event);
  } else if (sequence->num_generated() >= sequence->request.max_tokens) {
    Finish(FinishReason::kLength, absl::OkStatus(), now, sequence, event);
  } else {
    saver_.OnToken(sequence);
  }
}

void Scheduler::Rewind(Sequence* sequence) {
  if (options_.recompute_length > 0 && sequence->num_tokens() == options_.recompute_length + 1) {
    sequence->lease.StopSharing();
    sequence->lease.Crop(0);
  }
  if (options_.crop_every > 0 && sequence->num_generated() % options_.crop_every == 0) {
    // Depths of all sizes, within a block and beyond.
    const int64_t depth = 1 + sequence->num_generated() * 7 % 23;
    sequence->lease.Crop(std::max<int64_t>(0, sequence->num_computed() - depth));
  }
}

void Scheduler::Finish(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                       TokenEvent* event) {
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    Publish(sequence, /*at_end=*/true);
    NotePrefixes(*sequence, now);
  }
  saver_.OnEnd(reason, sequence);
  sequence->times.finished = now;
  event->num_cached = sequence->num_cached;
  event->key = sequence->request.key;
  event->finish = reason;
  event->error = error;
  event->times = sequence->times;
  event->output = sequence->output;
  if (sequence->group != nullptr) {
    std::vector<Sequence*>& members = sequence->group->members;
    std::erase(members, sequence);
    event->outputs_left = static_cast<int32_t>(members.size());
    if (!members.empty()) {
      by_key_[sequence->request.key] = members[0];
      return;
    }
  }
  by_key_.erase(sequence->request.key);
}

void Scheduler::RemoveFinished() {
  std::erase_if(running_, [](const std::unique_ptr<Sequence>& sequence) { return sequence->finished(); });
  counts_.num_running = static_cast<int64_t>(running_.size());
}

}  // namespace berth
