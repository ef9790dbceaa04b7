#include "scheduler/scheduler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "scheduler/output_group.h"
#include "scheduler/prompt_lookup.h"

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
        CheckOption("state_checkpoint_tokens", options.state_checkpoint_tokens, 0, "")}) {
    if (!status.ok()) return status;
  }
  options.prefill_chunk_tokens = std::min(options.prefill_chunk_tokens, options.max_step_tokens);
  if (cache->plan().has_cross() && options.max_step_tokens < 2) {
    return absl::InvalidArgumentError(
        "max_step_tokens is 1; at least 2 are needed: an encoder runs whole, beside a token of the decoder");
  }
  options.max_sequence_tokens = cache->MaxSequenceTokens(options.prefill_chunk_tokens, options.max_sequence_tokens,
                                                         /*cross_limit=*/options.max_step_tokens - 1);
  if (options.max_sequence_tokens < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the arena of ", cache->storage().size_bytes(), " bytes holds a sequence of ",
                     options.max_sequence_tokens, " tokens with prefill_chunk_tokens of ", options.prefill_chunk_tokens,
                     "; at least 2 are needed: a prompt's and an output's"));
  }
  return absl::WrapUnique(new Scheduler(cache, options));
}

void Scheduler::Add(Request request) {
  CacheImage image;
  if (request.progress != nullptr) image = std::move(request.progress->image);
  auto sequence = std::make_unique<Sequence>(std::move(request));
  if (sequence->request.num_sequences() > 1) OutputGroup::Create(sequence.get());
  if (!by_key_.emplace(sequence->request.key, sequence.get()).second) {
    ABSL_RAW_LOG(FATAL, "request key %llu is in use", static_cast<unsigned long long>(sequence->request.key));
  }
  next_deadline_ = std::min(next_deadline_, sequence->request.deadline);
  // A cache that was saved under another plan is computed again.
  if (!image.empty() && CheckImage(cache_->plan(), image).ok() && image.num_tokens < sequence->num_tokens() &&
      image.num_cross_tokens == sequence->num_encoder_tokens()) {
    prefixes_.MakeRoom(image.size_bytes);
    sequence->suspended = suspender_.Hold(std::move(image));
  }
  CountWaiting(*sequence, +1);
  waiting_.push_back(std::move(sequence));
}

void Scheduler::Save(RequestKey key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) saver_.Ask(found->second);
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
  any_cancelled_ = false;
  next_deadline_ = absl::InfiniteFuture();
  const auto end_if_due = [&](const std::unique_ptr<Sequence>& sequence) {
    FinishReason reason = sequence->cancelled;
    if (reason == FinishReason::kNone && now >= sequence->request.deadline) reason = FinishReason::kDeadline;
    if (reason == FinishReason::kNone && sequence->output_cancelled != FinishReason::kNone) {
      // Others wait for what an unforked one computes.
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
    if (restoring_.sequence == sequence.get()) DropRestoring();
    if (leaving_.sequence == sequence.get()) leaving_ = Leaving();
    EndWithRequest(reason, absl::OkStatus(), now, sequence.get(), events);
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

const StepPlan& Scheduler::Plan(absl::Time now) {
  plan_.Clear();
  planned_.clear();
  plan_start_ = now;
  suspender_.BeginStep();
  prefixes_.Poll(now);
  if (running_.empty()) prefixes_.Save(now, NextBytes());
  cache_->Compact(options_.compact_bytes_per_step);
  ForkOutputs();
  int64_t budget = GrowRunning();
  const auto grew = [](const std::unique_ptr<Sequence>& sequence) { return sequence->step_tokens > 0; };
  // Nobody waits for a copy where nobody runs.
  while (leaving_.sequence != nullptr && std::none_of(running_.begin(), running_.end(), grew)) {
    FinishLeaving();
    budget = GrowRunning();
  }
  awaits_disk_ = false;
  // A sequence that has just given way would only be let in to give way again.
  if (budget > 0) AdmitWaiting(budget, now);
  counts_.num_running = static_cast<int64_t>(running_.size());
  for (bool decodes : {true, false}) {
    for (const std::unique_ptr<Sequence>& sequence : running_) {
      if (sequence->step_tokens > 0 && sequence->step_decodes == decodes) AddRow(sequence.get());
    }
    if (decodes) plan_.num_decode_rows = static_cast<int64_t>(plan_.rows.size());
  }
  if (plan_.empty() && !empty() && !awaits_disk_) {
    ABSL_RAW_LOG(FATAL, "nothing to run although %zu sequences run and %zu wait", running_.size(), waiting_.size());
  }
  if (!plan_.empty()) StartCopies(now);
  return plan_;
}

int64_t Scheduler::GrowRunning() {
  const auto decoding = [](const std::unique_ptr<Sequence>& sequence) { return sequence->decoding(); };
  int64_t prefill_budget = options_.max_step_tokens - std::count_if(running_.begin(), running_.end(), decoding);
  const int64_t num_preemptions = counts_.num_preemptions;
  bool full = false;
  // By age, decoding or not: who has its tokens is never preempted for who comes later in this loop. Who has to wait
  // for a copy holds up none that find room.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    sequence.step_tokens = 0;
    sequence.drafts.clear();
    if (full && leaving_.sequence == nullptr) continue;
    sequence.step_decodes = sequence.decoding();
    sequence.step_tokens = sequence.step_decodes ? 1 : ChunkTokens(sequence, prefill_budget);
    ProposeDrafts(&sequence);
    if (sequence.step_tokens == 0) continue;
    if (!sequence.step_decodes) prefill_budget -= sequence.step_tokens;
    if (!GrowOrPreempt(i, sequence.step_tokens)) full = true;
  }
  if (running_.empty()) return options_.max_step_tokens;
  full = full || counts_.num_preemptions > num_preemptions;
  if (full) prefill_budget = 0;
  AddDrafts(&prefill_budget);
  return prefill_budget;
}

bool Scheduler::GrowOrPreempt(size_t index, int64_t num_tokens) {
  Sequence& sequence = *running_[index];
  while (!sequence.lease.Grow(num_tokens).ok()) {
    if (restoring_.sequence != nullptr) {
      DropRestoring();
      continue;
    }
    const bool waits = leaving_.sequence != nullptr;
    if (!waits && !SameRequest(sequence, *running_.back())) {
      PreemptYoungest();
      continue;
    }
    sequence.step_tokens = 0;
    // Older ones go on: what they return will be its.
    if (waits || !SameRequest(sequence, *running_.front())) return false;
    ABSL_RAW_LOG(FATAL, "a sequence of %lld tokens does not fit the arena that it has for itself",
                 static_cast<long long>(sequence.num_tokens()));
  }
  return true;
}

void Scheduler::ProposeDrafts(Sequence* sequence) {
  const Request& request = sequence->request;
  const SamplingParams& sampling = request.sampling;
  const bool plain = sampling.temperature == 0 && sampling.num_logprobs < 0 && sampling.repetition_penalty == 1 &&
                     sampling.presence_penalty == 0 && sampling.frequency_penalty == 0;
  if (request.draft_tokens == 0 || !plain || options_.recompute_length > 0 || sequence->group != nullptr) return;
  if (!sequence->decoding() || sequence->num_generated() < request.min_tokens) return;
  // The last token of the output is never a draft: it may be forced, and nothing follows it.
  const int64_t limit = std::min(request.draft_tokens, request.max_tokens - sequence->num_generated() - 2);
  const absl::Span<const int32_t> drafts = LookUpDraft(sequence->tokens, limit);
  sequence->drafts.assign(drafts.begin(), drafts.end());
  // A state cannot be cropped: the step goes back to this one if the model disagrees with a draft.
  if (!drafts.empty()) sequence->lease.Snapshot(/*keep=*/1);
}

void Scheduler::AddDrafts(int64_t* budget) {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    const int64_t limit = std::min(*budget, options_.prefill_chunk_tokens - 1);
    const int64_t count = std::min<int64_t>(limit, sequence->drafts.size());
    const int64_t start = sequence->num_computed() - 1;
    // No sequence is preempted for a draft, and nothing is computed anew for one that was wrong.
    if (count == 0 || !sequence->lease.CanCropTo(start) || !sequence->lease.GrowFor(count, start).ok()) {
      sequence->drafts.clear();
      continue;
    }
    sequence->drafts.resize(count);
    sequence->step_tokens = 1 + count;
    sequence->step_decodes = false;
    *budget -= count;
    counts_.draft_tokens += count;
  }
}

void Scheduler::PreemptYoungest() {
  ++counts_.num_preemptions;
  const RequestKey key = running_.back()->request.key;
  if (const auto& group = running_.back()->group; group != nullptr) group->Park();
  for (; !running_.empty() && running_.back()->request.key == key; running_.pop_back()) {
    std::unique_ptr<Sequence>& sequence = running_.back();
    Publish(sequence.get(), /*at_end=*/true);
    // Outputs that share a prompt are computed again: their images would hold it once for each.
    if (sequence->group == nullptr && suspender_.ShallSuspend(sequence->lease) &&
        prefixes_.MakeRoom(sequence->lease.image_bytes())) {
      leaving_.sequence = sequence.get();
      leaving_.cache = suspender_.NewSuspended(sequence->lease);
      leaving_.lease = std::move(sequence->lease);
    }
    sequence->lease = SequenceLease();
    sequence->encoded = false;
    sequence->step_tokens = 0;
    ++sequence->times.num_preemptions;
    CountWaiting(*sequence, +1);
    waiting_.push_front(std::move(sequence));
  }
}

void Scheduler::AdmitWaiting(int64_t budget, absl::Time now) {
  // What those admitted before have still to compute is not in their leases yet, but is spoken for.
  int64_t promised = 0;
  for (const std::unique_ptr<Sequence>& sequence : running_) promised += sequence->num_owed();
  while (!waiting_.empty() && budget > 0 && static_cast<int64_t>(running_.size()) < options_.max_running) {
    Sequence& sequence = *waiting_.front();
    if (sequence.num_encoder_tokens() >= budget) return;
    const OutputGroup* const group = sequence.group.get();
    const int64_t count = group == nullptr ? 1 : group->num_sequences();
    if (static_cast<int64_t>(running_.size()) + count > options_.max_running) return;
    const int64_t longest = group == nullptr ? sequence.num_tokens() : group->longest();
    if (!TakeLease(&sequence, longest + 1, ForksOf(sequence.prompt_length, count), promised)) return;
    sequence.step_decodes = sequence.decoding();
    if (!sequence.encoded) budget -= sequence.num_encoder_tokens();
    sequence.step_tokens = ChunkTokens(sequence, budget);
    if (absl::Status status = sequence.lease.Grow(sequence.step_tokens); !status.ok()) {
      ABSL_RAW_LOG(FATAL, "CanFit said yes, but %s", status.ToString().c_str());
    }
    budget -= sequence.step_tokens;
    promised += sequence.num_remaining() + (count - 1) * (longest + 1 - sequence.prompt_length);
    CountWaiting(sequence, -1);
    sequence.suspended.Drop();
    if (!sequence.ever_admitted()) {
      CountPrefix(&sequence);
      sequence.times.first_scheduled = now;
      sequence.tokens.reserve(sequence.prompt_length + sequence.request.max_tokens);
      sequence.drafts.reserve(sequence.request.draft_tokens);
    }
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (group != nullptr) AdmitOthers();
  }
}

bool Scheduler::StillLacksRoom(const Sequence& sequence) {
  // To look a long prompt up in the index takes as long as all else that a step needs of the scheduler.
  constexpr int64_t kPatience = 16;  // steps; what is published meanwhile may make it need less
  LackedRoom& then = lacked_room_;
  return then.key == sequence.request.key && !running_.empty() && then.num_running == running_.size() &&
         cache_->available_bytes() <= then.available_bytes && ++then.num_steps < kPatience;
}

bool Scheduler::TakeLease(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised) {
  if (leaving_.sequence == sequence) return TakeBack(sequence, length, promised);
  if (StillLacksRoom(*sequence)) return false;
  lacked_room_ = LackedRoom();
  sequence->lease = cache_->NewLease(sequence->num_encoder_tokens());
  Adopt(sequence);
  const FromTier from_tier = TakeFromTiers(sequence, length, forks, promised);
  if (from_tier != FromTier::kNothing) return from_tier == FromTier::kTaken;
  DropRestoring();
  const bool waits = WaitsForPrefix(*sequence);
  if (!waits && cache_->CanFit(sequence->lease, length, options_.prefill_chunk_tokens, promised, forks)) return true;
  sequence->lease = SequenceLease();
  if (!waits) {
    lacked_room_ = {
        .key = sequence->request.key, .num_running = running_.size(), .available_bytes = cache_->available_bytes()};
  }
  return false;
}

int64_t Scheduler::ChunkTokens(const Sequence& sequence, int64_t budget) const {
  if (sequence.parked) return 0;
  const int64_t start = sequence.num_computed();
  int64_t count = std::min({sequence.num_remaining(), options_.prefill_chunk_tokens, budget});
  if (sequence.group != nullptr && !sequence.group->forked) {
    count = std::min(count, OutputGroup::ForkPoint(sequence) - start);
  }
  if (options_.aligned_prefill_chunks) {
    count = std::min(count, options_.prefill_chunk_tokens - start % options_.prefill_chunk_tokens);
  }
  if (!sequence.lease.shares() || cache_->plan().state_group() < 0) return count;
  // A chunk ends where the states shall be kept.
  if (options_.state_checkpoint_tokens > 0) {
    count = std::min(count, options_.state_checkpoint_tokens - start % options_.state_checkpoint_tokens);
  }
  if (sequence.hit.matched_tokens > start) count = std::min(count, sequence.hit.matched_tokens - start);
  return count;
}

void Scheduler::AddRow(Sequence* sequence) {
  const int64_t num_drafts = static_cast<int64_t>(sequence->drafts.size());
  const int64_t end = sequence->num_computed() - num_drafts;  // of the known tokens
  const int64_t start = end + num_drafts - sequence->step_tokens;
  const Request& request = sequence->request;
  StepRow& row = plan_.rows.emplace_back();
  row.lease = &sequence->lease;
  row.tokens = absl::MakeConstSpan(sequence->tokens).subspan(start, end - start);
  row.start = start;
  row.drafts = sequence->drafts;
  row.sample = end == sequence->num_tokens() && (sequence->group == nullptr || sequence->group->forked);
  row.sampling = &request.sampling;
  row.history = absl::MakeConstSpan(sequence->tokens).first(end);
  row.prompt_length = sequence->prompt_length;
  row.sequence_length = sequence->num_tokens();
  if (row.sample) {
    if (sequence->num_generated() < request.min_tokens) row.banned = request.stop_token_ids;
    if (sequence->num_generated() == 0) row.forced = request.forced_first;
    const bool last = sequence->num_generated() + 1 == request.max_tokens;
    if (last && !request.forced_last.empty()) row.forced = request.forced_last;
  }
  if (!sequence->encoded) row.encoder_tokens = request.encoder_tokens;
  sequence->encoded = true;
  plan_.num_tokens += sequence->step_tokens + static_cast<int64_t>(row.encoder_tokens.size());
  planned_.push_back(sequence);
}

void Scheduler::FailStep(const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events) {
  FinishCopies(now);
  for (Sequence* sequence : planned_) {
    if (!sequence->finished()) EndRequest(FinishReason::kError, error, now, sequence, events);
  }
  RemoveFinished();
}

void Scheduler::EndAll(FinishReason reason, const absl::Status& error, absl::Time now,
                       std::vector<TokenEvent>* events) {
  DropRestoring();
  leaving_ = Leaving();
  for (const auto& sequence : running_) EndWithRequest(reason, error, now, sequence.get(), events);
  for (const auto& sequence : waiting_) {
    CountWaiting(*sequence, -1);
    EndWithRequest(reason, error, now, sequence.get(), events);
  }
  running_.clear();
  waiting_.clear();
  counts_.num_running = 0;
}

void Scheduler::CountWaiting(const Sequence& sequence, int64_t sign) {
  counts_.num_waiting += sign;
  counts_.waiting_tokens += sign * (sequence.parked ? sequence.num_owed() : sequence.num_to_prefill());
  if (!sequence.ever_admitted()) counts_.num_new += sign;
}

}  // namespace berth
