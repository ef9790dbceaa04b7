// What the scheduler does for requests of several outputs: admits, forks and ends them together, and steps beams.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/output_group.h"
#include "scheduler/scheduler.h"

namespace berth {

absl::Status Scheduler::CheckRequest(const Request& request) const {
  const int64_t count = request.num_sequences();
  if (count == 1) return absl::OkStatus();
  const absl::string_view field = request.beams.num_beams > 0 ? "num_beams" : "num_outputs";
  if (count > options_.max_running) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", count, ", over max_running of ", options_.max_running, " sequences at once"));
  }
  const int64_t num_tokens = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  const int64_t encoder = static_cast<int64_t>(request.encoder_tokens.size());
  const Forks forks = ForksOf(static_cast<int64_t>(request.prompt.size()), count);
  if (cache_->ArenaHolds(num_tokens, options_.prefill_chunk_tokens, encoder, forks)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", count, ": so many sequences of ", num_tokens,
                                                 " tokens (prompt and max_tokens) do not fit the arena of ",
                                                 cache_->storage().size_bytes(), " bytes together"));
}

void Scheduler::ForkOutputs() {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->group != nullptr && sequence->group->ready_to_fork()) sequence->group->Fork();
  }
}

void Scheduler::AdmitOthers() {
  const Sequence& first = *running_.back();
  for (std::unique_ptr<Sequence>& other : first.group->MakeOthers()) running_.push_back(std::move(other));
  while (!waiting_.empty() && SameRequest(first, *waiting_.front())) {
    CountWaiting(*waiting_.front(), -1);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

Forks Scheduler::ForksOf(int64_t prompt_tokens, int64_t num_sequences) const {
  const bool may_crop = options_.crop_every > 0 || options_.recompute_length > 0;
  return {.count = num_sequences - 1, .shared_tokens = may_crop ? 0 : prompt_tokens - 1};
}

void Scheduler::AcceptBeam(const StepRow& row, const RowResult& result, Sequence* sequence, absl::Time now,
                           std::vector<TokenEvent>* events) {
  // A search needs the likeliest tokens, whatever the row chose.
  if (absl::Status error =
          CheckToken(result.top.empty() ? std::min(result.token, RowResult::kNoToken) : result.token, *sequence);
      !error.ok()) {
    sequence->lease.Withdraw();
    EndRequest(FinishReason::kError, error, now, sequence, events);
    return;
  }
  Publish(sequence, /*at_end=*/false);
  OutputGroup& group = *sequence->group;
  if (!group.Offer(row, result, *sequence)) return;
  counts_.generation_tokens += group.num_sequences();
  for (Sequence* member : group.members) {
    if (member->times.first_token == absl::InfinitePast()) member->times.first_token = now;
  }
  if (group.search->over()) {
    FinishBeams(sequence, now, events);
  } else {
    for (Sequence* member : group.members) Rewind(member);
  }
}

void Scheduler::FinishBeams(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events) {
  const std::vector<Sequence*> members = sequence->group->members;
  const int64_t num_outputs = sequence->request.num_outputs;
  for (int64_t i = 0; i < static_cast<int64_t>(members.size()); ++i) {
    Sequence* const member = members[i];
    const BeamSearch::Beam& beam = sequence->group->search->ended()[i];
    TokenEvent event{.key = member->request.key, .output = member->output};
    event.times = member->times;
    event.num_cached = member->num_cached;
    for (size_t t = 0; t < beam.tokens.size(); ++t) {
      event.token = beam.tokens[t];
      event.logprob = beam.logprobs[t];
      if (i < num_outputs && t + 1 < beam.tokens.size()) events->push_back(event);
    }
    const bool stops = member->StopsAt(event.token);
    if (stops) event.stop_token = event.token;
    Finish(stops ? FinishReason::kStop : FinishReason::kLength, absl::OkStatus(), now, member, &event);
    event.outputs_left = static_cast<int32_t>(num_outputs - 1 - i);
    if (i < num_outputs) events->push_back(event);
  }
}

void Scheduler::EndWithRequest(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                               std::vector<TokenEvent>* events) {
  TokenEvent event;
  Finish(reason, error, now, sequence, &event);
  const bool alone = sequence->output_cancelled != FinishReason::kNone;
  if (event.outputs_left == 0 || alone) events->push_back(std::move(event));
}

void Scheduler::EndRequest(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                           std::vector<TokenEvent>* events) {
  const std::vector<Sequence*> all = sequence->group == nullptr ? std::vector{sequence} : sequence->group->members;
  for (Sequence* member : all) EndWithRequest(reason, error, now, member, events);
}

}  // namespace berth
