#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "scheduler/load/step_progress.h"
#include "scheduler/output/output_group.h"

namespace berth {
namespace {

absl::Status CheckOption(absl::string_view name, int64_t value, int64_t least, absl::string_view why) {
  if (value >= least && value <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", outside [", least, ", 2^31)", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(Cache* cache, Options options) {
  for (const absl::Status& status :
       {CheckOption("max_running", options.max_running, 1, ""),
        CheckOption("max_step_tokens", options.max_step_tokens, std::max<int64_t>(1, options.max_running),
                    ": each of max_running sequences may decode a token in one step"),
        CheckOption("prefill_chunk_tokens", options.prefill_chunk_tokens, 1, ""),
        CheckOption("max_sequence_tokens", options.max_sequence_tokens, 2, ""),
        CheckOption("target_step_time in ms", absl::ToInt64Milliseconds(options.target_step_time), 0, ""),
        CheckOption("state_checkpoint_tokens", options.state_checkpoint_tokens, Options::kAutoCheckpoints, ""),
        CheckOption("mask_threads", options.mask_threads, 0, "")}) {
    if (!status.ok()) return status;
  }
  // An aligned chunk is whole or has to wait, so each step must have room for one beside what decodes.
  const int64_t others = options.aligned_prefill_chunks ? options.max_running - 1 : 0;
  options.prefill_chunk_tokens = std::min(options.prefill_chunk_tokens, options.max_step_tokens - others);
  if (cache->plan().has_cross() && options.max_step_tokens < 2) {
    return absl::InvalidArgumentError(
        "max_step_tokens is 1; at least 2 are needed: one for the encoder, one for the decoder");
  }
  options.max_sequence_tokens = cache->MaxSequenceTokens(options.prefill_chunk_tokens, options.max_sequence_tokens,
                                                         /*cross_limit=*/options.max_step_tokens - 1);
  if (options.max_sequence_tokens < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the arena of ", cache->storage().size_bytes(), " bytes holds a sequence of ",
                     options.max_sequence_tokens, " tokens with prefill_chunk_tokens of ", options.prefill_chunk_tokens,
                     "; at least 2 are needed: one of a prompt, one of its output"));
  }
  return absl::WrapUnique(new Scheduler(cache, options));
}

Scheduler::Scheduler(Cache* cache, const Options& options)
    : cache_(cache),
      options_(options),
      policy_(options.policy != nullptr ? options.policy : &fcfs_),
      sharing_(options, &cache->plan()),
      swap_(options, cache, &sharing_),
      saver_(options.save_sink, &swap_.copies()),
      committer_(options, {.sharing = &sharing_, .swap = &swap_, .saver = &saver_, .counts = &counts_}),
      pacer_(options.target_step_time),
      mask_workers_(options.mask_threads, options.vocab_size) {}

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
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", count, ": that many sequences of ", num_tokens,
                                                 " tokens (prompt and max_tokens) do not fit the arena of ",
                                                 cache_->storage().size_bytes(), " bytes together"));
}

Forks Scheduler::ForksOf(int64_t prompt_tokens, int64_t num_sequences) const {
  const bool may_crop = options_.crop_every > 0 || options_.rope_switch_length > 0;
  return {.count = num_sequences - 1, .shared_tokens = may_crop ? 0 : prompt_tokens - 1};
}

void Scheduler::Add(Request request) {
  CacheSnapshot snapshot;
  if (request.progress != nullptr) snapshot = std::move(request.progress->snapshot);
  auto sequence = std::make_unique<Sequence>(std::move(request));
  if (sequence->request.num_sequences() > 1) OutputGroup::Create(sequence.get());
  if (!by_key_.emplace(sequence->request.key, sequence.get()).second) {
    ABSL_RAW_LOG(FATAL, "request key %llu is in use", static_cast<unsigned long long>(sequence->request.key));
  }
  next_deadline_ = std::min(next_deadline_, sequence->request.deadline);
  // A cache that was saved under another plan is computed again.
  if (!snapshot.empty() && CheckSnapshot(cache_->plan(), snapshot).ok() &&
      snapshot.num_tokens < sequence->num_tokens() && snapshot.num_cross_tokens == sequence->num_encoder_tokens()) {
    swap_.KeepResumed(std::move(snapshot), sequence.get());
  }
  CountWaiting(*sequence, +1);
  policy_->OnArrival(*sequence);
  waiting_.push_back(std::move(sequence));
}

void Scheduler::Save(RequestKey key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) saver_.Ask(found->second);
}

// The prefix index keeps what the request computed until others need the room. So a request that soon continues finds
// its cache, and no lease is held without use.
void Scheduler::Pause(RequestKey key, absl::Time now, absl::Duration time) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || found->second->paused) return;
  const auto of_request = [key](const std::unique_ptr<Sequence>& sequence) { return sequence->request.key == key; };
  if (const auto runs = std::find_if(running_.begin(), running_.end(), of_request); runs != running_.end()) {
    Preempt(static_cast<size_t>(runs - running_.begin()));
    counts_.num_running = static_cast<int64_t>(running_.size());
  }
  for (std::unique_ptr<Sequence>& sequence : waiting_) {
    if (!of_request(sequence)) continue;
    CountWaiting(*sequence, -1);
    policy_->OnPause(*sequence);
    swap_.CancelSwapIn(sequence.get());
    sequence->paused = true;
    sequence->paused_until = now + time;
    if (sequence->ever_admitted() && sequence->paused_since == absl::InfinitePast()) sequence->paused_since = now;
    paused_.push_back(std::move(sequence));
  }
  std::erase(waiting_, nullptr);
  ++counts_.num_pauses;
  counts_.num_paused = static_cast<int64_t>(paused_.size());
  next_deadline_ = std::min(next_deadline_, now + time);
}

void Scheduler::Unpause(RequestKey key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || !found->second->paused) return;
  for (size_t i = paused_.size(); i > 0; --i) {
    std::unique_ptr<Sequence>& sequence = paused_[i - 1];
    if (sequence->request.key != key) continue;
    sequence->paused = false;
    suspects_.OnReturn(*sequence);
    CountWaiting(*sequence, +1);
    policy_->OnUnpause(*sequence);
    waiting_.push_front(std::move(sequence));
  }
  std::erase(paused_, nullptr);
  counts_.num_paused = static_cast<int64_t>(paused_.size());
  any_cancelled_ = true;  // perhaps one of its outputs
}

void Scheduler::UnpauseDue(absl::Time now) {
  for (size_t i = 0; i < paused_.size();) {
    const Sequence& sequence = *paused_[i];
    const RequestKey key = sequence.request.key;
    if (now >= sequence.paused_until) Cancel(key, FinishReason::kUnread);
    if (sequence.cancelled != FinishReason::kNone || now >= sequence.request.deadline) {
      Unpause(key);
      i = 0;
    } else {
      next_deadline_ = std::min({next_deadline_, sequence.paused_until, sequence.request.deadline});
      ++i;
    }
  }
}

void Scheduler::RunIdleWork(absl::Time now) {
  swap_.RunIdleWork(now);
  if (swap_.swapping_out() != nullptr) CountSwapOut(swap_.FinishSwapOut());  // of a paused sequence
  saver_.HandOver();
}

absl::Time Scheduler::NextIdleWork(absl::Time now) const {
  constexpr absl::Duration kSaveInterval = absl::Milliseconds(10);  // between looks at a sink that had no room
  absl::Time next = swap_.NextIdleWork(now);
  if (!paused_.empty()) next = std::min(next, next_deadline_);
  return saver_.any_due() ? std::min(next, now + kSaveInterval) : next;
}

void Scheduler::Cancel(RequestKey key, FinishReason reason, int32_t output) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const auto cancel = [&](Sequence& sequence) {
    FinishReason& due = output == kAllOutputs ? sequence.cancelled : sequence.output_cancelled;
    if (due == FinishReason::kNone && (output == kAllOutputs || output == sequence.output)) due = reason;
  };
  if (const auto& group = found->second->group; group != nullptr) {
    for (Sequence* member : group->members) cancel(*member);
  } else {
    cancel(*found->second);
  }
  any_cancelled_ = true;
}

void Scheduler::EndDue(absl::Time now, std::vector<TokenEvent>* events) {
  if (!any_cancelled_ && now < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  UnpauseDue(now);
  any_cancelled_ = false;
  const auto end_if_due = [&](const std::unique_ptr<Sequence>& sequence) {
    FinishReason reason = sequence->cancelled;
    if (reason == FinishReason::kNone && now >= sequence->request.deadline) reason = FinishReason::kDeadline;
    if (reason == FinishReason::kNone && sequence->output_cancelled != FinishReason::kNone) {
      // Until the fork, the other outputs wait for what this one computes.
      if (sequence->group == nullptr || sequence->group->forked) {
        reason = sequence->output_cancelled;
      } else {
        any_cancelled_ = true;
      }
    }
    if (reason == FinishReason::kNone) {
      next_deadline_ = std::min(next_deadline_, sequence->request.deadline);
      return false;
    }
    committer_.End(reason, absl::OkStatus(), now, sequence.get(), events);
    Forget(*sequence);
    return true;
  };
  std::erase_if(running_, end_if_due);
  std::erase_if(waiting_, [&](const std::unique_ptr<Sequence>& sequence) {
    if (!end_if_due(sequence)) return false;
    CountWaiting(*sequence, -1);
    return true;
  });
  counts_.num_running = static_cast<int64_t>(running_.size());
}

FreedBytes Scheduler::DropPrefixes(std::optional<absl::string_view> salt) {
  FreedBytes freed = swap_.DropPrefixes(salt);
  freed.arena = cache_->ForgetPrefixes(salt);
  return freed;
}

void Scheduler::Commit(const StepResult& result, absl::Time now, std::vector<TokenEvent>* events) {
  mask_workers_.Finish();
  FinishCopies(now);
  const absl::Duration time = now - plan_start_;
  // What prefilling takes; steps that mostly decode or check drafts say little of it.
  if (2 * plan_.num_tokens_past_prompt() <= plan_.num_tokens) swap_.OnPrefill(plan_.num_tokens, time);
  for (size_t i = 0; i < planned_.size(); ++i) {
    Sequence& sequence = *planned_[i];
    const StepRow& row = plan_.rows[i];
    Suspects::OnComputed(row.start + static_cast<int64_t>(row.tokens.size()), &sequence);
    policy_->OnComputed(sequence, CountComputed(row, &sequence));
    if (sequence.finished()) continue;  // with another output of its request
    committer_.Commit(row, result.rows[i], &sequence, now, events);
  }
  CommitForced(now, events);
  const int64_t num_past_prompt = plan_.num_rows_past_prompt();
  pacer_.OnStep(time, plan_.num_tokens - num_past_prompt, num_past_prompt);
  policy_->OnStep(running_, time);
  const auto finished = [](const Sequence* sequence) { return sequence->finished(); };
  if (std::any_of(planned_.begin(), planned_.end(), finished)) RemoveFinished();
  saver_.HandOver();
}

ComputedTokens Scheduler::CountComputed(const StepRow& row, Sequence* sequence) {
  const int64_t num_encoder = static_cast<int64_t>(row.encoder_tokens.size());
  const int64_t num_tokens = row.num_tokens() + num_encoder;
  const int64_t counted = sequence->num_counted;
  sequence->num_counted = std::max(counted, std::min(sequence->num_computed(), sequence->num_tokens()));
  if (counted == 0) counts_.prompt_tokens += sequence->num_encoder_tokens();
  counts_.prompt_tokens +=
      std::min(sequence->num_counted, sequence->prompt_length) - std::min(counted, sequence->prompt_length);
  if (sequence->step_decodes || !row.drafts.empty()) return {.decode = num_tokens};
  return {.prefill = num_tokens,
          .again = std::clamp<int64_t>(counted - row.start, 0, row.num_tokens()) + (counted > 0 ? num_encoder : 0)};
}

void Scheduler::CommitForced(absl::Time now, std::vector<TokenEvent>* events) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    const int64_t limit = plan_.rows[i].sample ? OutputCommitter::MaxForced(*planned_[i]) : 0;
    if (limit > 0) mask_workers_.AddForced(&planned_[i]->constraint, limit);
  }
  mask_workers_.Run();
  for (size_t i = 0; i < planned_.size(); ++i) {
    const StepRow& row = plan_.rows[i];
    if (row.sample) committer_.CommitForced(row.sequence_length, planned_[i], now, events);
  }
}

void Scheduler::FinishCopies(absl::Time now) {
  StepProgress* const progress = options_.progress;
  if (progress != nullptr) progress->Enter(StepPhase::kCopy);
  CountSwapOut(swap_.FinishCopies(now));
  if (progress != nullptr) progress->Enter(StepPhase::kCommit);
}

bool Scheduler::FailStep(const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events) {
  mask_workers_.Finish();
  FinishCopies(now);
  const auto of_another = [this](const Sequence* s) { return !SameRequest(*s, *planned_.front()); };
  const bool shared = std::any_of(planned_.begin(), planned_.end(), of_another);
  if (shared && !absl::IsDataLoss(error)) {
    SuspectPlanned(error, now, events);
  } else {
    for (Sequence* sequence : planned_) {
      if (!sequence->finished()) committer_.EndRequest(FinishReason::kError, error, now, sequence, events);
    }
    RemoveFinished();
    for (const auto& sequence : running_) sequence->num_shared_failures = 0;
    for (const auto& sequence : waiting_) sequence->num_shared_failures = 0;
    for (const auto& sequence : paused_) sequence->num_shared_failures = 0;
  }
  return suspects_.Pick(running_, waiting_) == Suspects::Turn::kAlone;
}

void Scheduler::SuspectPlanned(const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    Sequence& sequence = *planned_[i];
    const StepRow& row = plan_.rows[i];
    if (sequence.finished()) continue;  // with another output of its request
    if (suspects_.Add(row.start + static_cast<int64_t>(row.tokens.size()), &sequence)) continue;
    committer_.EndRequest(FinishReason::kError, error, now, &sequence, events);
  }
  RemoveFinished();
  for (size_t i = running_.size(); i > 0; --i) {
    if (i <= running_.size() && running_[i - 1]->suspect_until > 0) Preempt(i - 1, /*keep_cache=*/false);
  }
  counts_.num_running = static_cast<int64_t>(running_.size());
}

void Scheduler::EndAll(FinishReason reason, const absl::Status& error, absl::Time now,
                       std::vector<TokenEvent>* events) {
  while (!paused_.empty()) Unpause(paused_.front()->request.key);
  for (const auto& sequence : running_) {
    committer_.End(reason, error, now, sequence.get(), events);
    Forget(*sequence);
  }
  for (const auto& sequence : waiting_) {
    CountWaiting(*sequence, -1);
    committer_.End(reason, error, now, sequence.get(), events);
    Forget(*sequence);
  }
  running_.clear();
  waiting_.clear();
  counts_.num_running = 0;
}

void Scheduler::Forget(const Sequence& sequence) {
  policy_->OnEnd(sequence);
  if (sequence.group != nullptr && !sequence.group->members.empty()) {
    by_key_[sequence.request.key] = sequence.group->members[0];
  } else {
    by_key_.erase(sequence.request.key);
  }
}

void Scheduler::RemoveFinished() {
  std::erase_if(running_, [this](const std::unique_ptr<Sequence>& sequence) {
    if (!sequence->finished()) return false;
    Forget(*sequence);
    return true;
  });
  counts_.num_running = static_cast<int64_t>(running_.size());
}

Backlog Scheduler::backlog() const {
  Backlog backlog = {.prefill_tokens = counts_.waiting_tokens,
                     .num_sequences = counts_.num_running + counts_.num_waiting,
                     .num_places = options_.max_running};
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (!sequence->decoding() && !sequence->finished()) backlog.prefill_tokens += sequence->num_owed();
  }
  if (lacked_room_.key != 0 && !waiting_.empty()) backlog.num_places = static_cast<int64_t>(running_.size());
  return backlog;
}

void Scheduler::SaveAll(absl::Time now) {
  swap_.SaveAll(now, [this](StepPhase phase) {
    if (options_.progress != nullptr) options_.progress->Enter(phase);
  });
}

void Scheduler::CountWaiting(const Sequence& sequence, int64_t sign) {
  counts_.num_waiting += sign;
  counts_.waiting_tokens += sign * (sequence.parked ? sequence.num_owed() : sequence.num_to_prefill());
  if (!sequence.ever_admitted()) counts_.num_new += sign;
}

void Scheduler::CountSwapOut(const Sequence* sequence) {
  if (sequence == nullptr) return;
  ++counts_.num_swap_outs;
  if (sequence->paused) return;
  // It waits as one that has all to compute; now it has its snapshot.
  counts_.waiting_tokens -= sequence->num_tokens() + sequence->num_encoder_tokens() - sequence->num_to_prefill();
}

}  // namespace berth
