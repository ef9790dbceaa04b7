// How the scheduler plans a step: growth, preemption and admission.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "scheduler/output/drafts.h"
#include "scheduler/output/output_group.h"
#include "scheduler/output/token_bans.h"
#include "scheduler/scheduler.h"

namespace berth {
namespace {

// Has the row of an embedding's prompt, up to token `end`, pool what is not pooled yet.
void AddPooling(const Sequence& sequence, int64_t end, StepRow* row) {
  if (sequence.request.pooling == Pooling::kMean) row->num_pooled = std::max<int64_t>(0, end - sequence.num_pooled);
  if (sequence.request.pooling == Pooling::kLast && end == sequence.prompt_length) row->num_pooled = 1;
  if (row->num_pooled > 0) row->pooled = sequence.pooled;
}

// Has the row of a sequence choose no token that may not come next. A beam's row ranks as many tokens more as are
// banned, so that enough are left.
void AddBans(Sequence* sequence, StepRow* row) {
  Request& request = sequence->request;
  if (request.rules.empty()) {
    if (sequence->num_generated() < request.min_tokens) row->banned = request.stop_token_ids;
    return;
  }
  ApplyTokenRules(sequence);
  if (request.beams.num_beams > 0) {
    std::vector<int32_t>& banned = sequence->banned;
    std::sort(banned.begin(), banned.end());
    banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  }
  row->banned = sequence->banned;
  if (request.beams.num_beams > 0) {
    const int64_t count = BeamSearch::NumCandidates(request) + static_cast<int64_t>(row->banned.size());
    request.sampling.num_logprobs = static_cast<int32_t>(count);
  }
}

constexpr auto kGrew = [](const std::unique_ptr<Sequence>& sequence) { return sequence->step_tokens > 0; };

}  // namespace

// The order matters. Copies and compaction come first, because rows may not lie where something moves. Growth comes
// before admission, so that a new sequence never takes what a running one needs. Copies beside the step start last,
// when nothing moves any more.
const StepPlan& Scheduler::Plan(absl::Time now) {
  plan_.Clear();
  planned_.clear();
  plan_start_ = now;
  swap_.BeginStep(now, next_waiting(), /*nothing_runs=*/running_.empty());
  cache_->Compact(options_.compact_bytes_per_step);
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->group != nullptr && sequence->group->ready_to_fork()) {
      sequence->group->Fork(options_.rope_switch_length);
    }
  }
  suspects_.Pick(running_, waiting_);
  GrowAndAdmit(now);
  if (suspects_.turn() == Suspects::Turn::kAlone && std::none_of(running_.begin(), running_.end(), kGrew)) {
    suspects_.PassTurn(/*any_runs=*/!running_.empty());
    GrowAndAdmit(now);
  }
  counts_.num_running = static_cast<int64_t>(running_.size());
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->step_tokens > 0) sharing_.MarkStates(sequence.get());
  }
  for (bool decodes : {true, false}) {
    for (const std::unique_ptr<Sequence>& sequence : running_) {
      if (sequence->step_tokens > 0 && sequence->step_decodes == decodes) AddRow(sequence.get());
    }
    if (decodes) plan_.num_decode_rows = static_cast<int64_t>(plan_.rows.size());
  }
  if (plan_.empty() && !empty() && !swap_.awaits_disk()) {
    ABSL_RAW_LOG(FATAL, "nothing to run although %zu sequences run and %zu wait", running_.size(), waiting_.size());
  }
  if (suspects_.turn() == Suspects::Turn::kAlone && !plan_.empty()) ++counts_.num_retried_steps;
  mask_workers_.Start();
  if (!plan_.empty()) swap_.StartCopies(now, next_waiting());
  return plan_;
}

void Scheduler::GrowAndAdmit(absl::Time now) {
  const auto none_grew = [this] { return std::none_of(running_.begin(), running_.end(), kGrew); };
  const auto grow = [&](bool paced) {
    int64_t budget = GrowRunning(paced);
    // If no sequence runs, a copy delays none. Then the swap-out ends at once, and its room is free.
    while (swap_.swapping_out() != nullptr && none_grew()) {
      CountSwapOut(swap_.FinishSwapOut());
      budget = GrowRunning(paced);
    }
    return budget;
  };
  const int64_t num_preemptions = counts_.num_preemptions;
  int64_t budget = grow(/*paced=*/true);
  // Prefill is held back for those that decode. If none of them has room, it must not wait for them.
  if (withheld_ > 0 && none_grew()) budget = grow(/*paced=*/false);
  // What was just preempted would only be admitted to be preempted again.
  if (counts_.num_preemptions > num_preemptions) return;
  if (budget > 0 && suspects_.turn() != Suspects::Turn::kOthers) AdmitWaiting(budget, now);
}

// One pass over the running sequences, in order of admission. Each takes its tokens and grows by them at once:
//
//   running:   A (decodes)   B (prefills)   C (decodes)   D (prefills)
//   budget:    1 set aside   a chunk        1 set aside   what B left of it
//
// A sequence past its prompt that has several tokens to compute, because its constraint forced some, has a token set
// aside too, and takes more from the rest. So it is never slower than one whose tokens are chosen one by one.
//
// A sequence that cannot grow preempts later ones only. So one that has its tokens of this step never loses them to
// another that comes later in the pass. After a sequence found no room, the later ones would find none either, so they
// sit the step out. The exception is a swap-out under way: the sequence that waits for its room must not hold up those
// that need none.
//
// Returns 0 when a sequence found no room or was preempted.
int64_t Scheduler::GrowRunning(bool paced) {
  const auto decoding = [this](const std::unique_ptr<Sequence>& sequence) {
    return !suspects_.SitsOut(*sequence) && (sequence->decoding() || sequence->catching_up());
  };
  const int64_t num_decoding = std::count_if(running_.begin(), running_.end(), decoding);
  int64_t left = options_.max_step_tokens - num_decoding;
  withheld_ = paced && num_decoding > 0 ? std::max<int64_t>(0, left - pacer_.MostPrefillTokens()) : 0;
  left -= withheld_;
  policy_->OnPlan({.now = plan_start_,
                   .num_tokens = left,
                   .chunk_tokens = options_.prefill_chunk_tokens,
                   .free_sequences = options_.max_running - static_cast<int64_t>(running_.size())},
                  running_);
  const int64_t num_preemptions = counts_.num_preemptions;
  bool full = false;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    sequence.step_tokens = 0;
    sequence.drafts.clear();
    if (suspects_.SitsOut(sequence) || (full && swap_.swapping_out() == nullptr)) continue;
    sequence.step_decodes = sequence.decoding();
    if (sequence.step_decodes) {
      sequence.step_tokens = TokenLimit(sequence, TokenUse::kDecode, 1);
      if (sequence.step_tokens > 0 && options_.rope_switch_length == 0) ProposeDrafts(&sequence);
    } else {
      const int64_t own = sequence.catching_up() ? TokenLimit(sequence, TokenUse::kDecode, 1) : 0;
      const int64_t limit = own + TokenLimit(sequence, TokenUse::kPrefill, left);
      sequence.step_tokens = ChunkTokens(sequence, limit, own + left);
      left -= std::max<int64_t>(0, sequence.step_tokens - own);
    }
    if (sequence.step_tokens > 0 && !GrowOrPreempt(&i, sequence.step_tokens)) full = true;
  }
  if (running_.empty()) return options_.max_step_tokens;
  if (full || counts_.num_preemptions > num_preemptions) left = 0;
  CheckDrafts();
  GrowForDrafts(&left);
  return left;
}

int64_t Scheduler::TokenLimit(const Sequence& sequence, TokenUse use, int64_t left) {
  // The first running request gets all it can use, so that there always is progress.
  if (running_.empty() || SameRequest(sequence, *running_.front())) return left;
  if (suspects_.turn() != Suspects::Turn::kAll) return left;
  return std::clamp<int64_t>(policy_->TokenLimit(sequence, use, left), 0, left);
}

int64_t Scheduler::ChunkTokens(const Sequence& sequence, int64_t limit, int64_t room) const {
  if (sequence.parked) return 0;
  int64_t count = std::min(sequence.num_remaining(), options_.prefill_chunk_tokens);
  if (sequence.group != nullptr && !sequence.group->forked) {
    count = std::min(count, OutputGroup::ForkPoint(sequence) - sequence.num_computed());
  }
  return sharing_.ChunkTokens(sequence, count, limit, room);
}

// The cheapest room first: that of a cache that is only on its way in, then that of a later request. A swap-out gives
// its room when it ends, so the sequence waits for that, and no second one is preempted meanwhile.
bool Scheduler::GrowOrPreempt(size_t* index, int64_t num_tokens) {
  Sequence& sequence = *running_[*index];
  while (!sequence.lease.Grow(num_tokens).ok()) {
    if (swap_.CancelSwapIn()) continue;
    const size_t own = *index;
    if (swap_.swapping_out() == nullptr && PreemptFor(index)) {
      if (*index != own) return true;  // it waits now
      continue;
    }
    sequence.step_tokens = 0;
    // The ones before it run, and will return what it needs.
    if (swap_.swapping_out() != nullptr || !SameRequest(sequence, *running_.front())) return false;
    ABSL_RAW_LOG(FATAL, "a sequence of %lld tokens does not fit the arena that it has for itself",
                 static_cast<long long>(sequence.num_tokens()));
  }
  return true;
}

bool Scheduler::PreemptFor(size_t* index) {
  const Sequence& beneficiary = *running_[*index];
  size_t first = *index + 1;
  while (first < running_.size() && SameRequest(beneficiary, *running_[first])) ++first;
  const RunningSequences candidates = absl::MakeConstSpan(running_).subspan(first);
  if (candidates.empty()) return false;
  size_t picked = policy_->PickToPreempt(candidates, beneficiary);
  const bool spares = picked == SchedulingPolicy::kNobody || picked == SchedulingPolicy::kItself;
  if (spares && SameRequest(beneficiary, *running_.front())) picked = candidates.size() - 1;
  if (picked == SchedulingPolicy::kNobody) return false;
  if (picked == SchedulingPolicy::kItself) {
    *index = Preempt(*index, /*keep_cache=*/true, /*num_grown=*/*index) - 1;  // the first request is before it
  } else {
    Preempt(first + picked);
  }
  return true;
}

size_t Scheduler::Preempt(size_t index, bool keep_cache, size_t num_grown) {
  ++counts_.num_preemptions;
  // The outputs of one request are neighbours.
  size_t first = index;
  size_t last = index + 1;
  while (last < running_.size() && SameRequest(*running_[last], *running_[index])) ++last;
  while (first > 0 && SameRequest(*running_[first - 1], *running_[index])) --first;
  if (const auto& group = running_[first]->group; group != nullptr) group->Park();
  bool swaps_out = false;
  for (size_t i = last; i > first; --i) {
    std::unique_ptr<Sequence>& sequence = running_[i - 1];
    // An output that has grown in this pass holds room for tokens that no step will compute.
    const bool grew = i <= num_grown && sequence->step_tokens > 0;
    if (keep_cache && !grew) sharing_.Publish(sequence.get(), /*at_end=*/true);
    // Outputs that share a prompt are computed again: their snapshots would hold it once for each.
    const bool may_swap_out = sequence->group == nullptr && swap_.swapping_out() == nullptr;
    if (keep_cache && may_swap_out) swaps_out = swap_.SwapOut(sequence.get());
    sequence->lease = SequenceLease();
    sequence->encoded = false;
    sequence->step_tokens = 0;
    sequence->drafts.clear();
    ++sequence->times.num_preemptions;
    CountWaiting(*sequence, +1);
    policy_->OnPreempt(*sequence);
    waiting_.push_front(std::move(sequence));
  }
  if (!swaps_out) ++counts_.num_recomputes;
  running_.erase(running_.begin() + static_cast<int64_t>(first), running_.begin() + static_cast<int64_t>(last));
  return first;
}

void Scheduler::CheckDrafts() {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->drafts.empty() || !sequence->constraint.applies()) continue;
    mask_workers_.AddCheck(&sequence->constraint, &sequence->drafts);
  }
  mask_workers_.Run();
}

void Scheduler::GrowForDrafts(int64_t* budget) {
  int64_t left = kMaxStepDrafts;
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->drafts.empty()) continue;
    const int64_t limit =
        std::min({TokenLimit(*sequence, TokenUse::kDrafts, *budget), options_.prefill_chunk_tokens - 1, left});
    const int64_t count = std::min<int64_t>(limit, static_cast<int64_t>(sequence->drafts.size()));
    const int64_t start = sequence->num_computed() - 1;
    // No sequence is preempted for a draft, and nothing is computed again for one that was wrong. So the lease keeps
    // the states to which it goes back then.
    if (count == 0 || !sequence->lease.CanCropTo(start) ||
        !sequence->lease.GrowFor(count, start, /*keep_snapshots=*/true).ok()) {
      sequence->drafts.clear();
      sequence->lease.SnapshotStates(/*keep=*/0);
      continue;
    }
    sequence->drafts.resize(count);
    sequence->step_tokens = 1 + count;
    sequence->step_decodes = false;
    *budget -= count;
    left -= count;
    counts_.draft_tokens += count;
  }
}

// Until the fork, the first sequence of a request is promised what all of its sequences lack.
int64_t Scheduler::PromisedBytes(const Sequence& sequence) const {
  if (sequence.parked) return 0;
  const OutputGroup* const group = sequence.group.get();
  if (group == nullptr || group->forked) {
    return cache_->MissingBytes(sequence.lease, sequence.num_tokens(), options_.prefill_chunk_tokens);
  }
  return cache_->MissingBytes(sequence.lease, group->longest(), options_.prefill_chunk_tokens,
                              ForksOf(sequence.prompt_length, group->num_sequences()));
}

// Admits a sequence if a lease for all its tokens and one more, if it generates, fits. The leases of running sequences
// may not hold all their tokens yet. What they still have to prefill is `promised` to them and counts as taken. Their
// future outputs do not: those make room by preemption.
void Scheduler::AdmitWaiting(int64_t budget, absl::Time now) {
  if (waiting_.empty()) return;
  int64_t promised = 0;
  for (const std::unique_ptr<Sequence>& sequence : running_) promised += PromisedBytes(*sequence);
  while (!waiting_.empty() && budget > 0 && static_cast<int64_t>(running_.size()) < options_.max_running) {
    const bool alone = suspects_.turn() == Suspects::Turn::kAlone;
    const Sequence* const picked = alone ? suspects_.alone() : policy_->PickToAdmit(waiting_);
    const auto is_picked = [&](const std::unique_ptr<Sequence>& other) { return other.get() == picked; };
    auto first = std::find_if(waiting_.begin(), waiting_.end(), is_picked);
    if (first == waiting_.end()) return;  // it runs
    while (first != waiting_.begin() && SameRequest(**(first - 1), *picked)) --first;
    Sequence& sequence = **first;
    // An encoder's input is computed in one step, however long that takes.
    const int64_t more = sequence.num_encoder_tokens() > 0 ? withheld_ : 0;
    const int64_t limit = TokenLimit(sequence, TokenUse::kAdmission, budget + more);
    if (sequence.num_encoder_tokens() >= limit) return;
    const OutputGroup* const group = sequence.group.get();
    const int64_t count = group == nullptr ? 1 : group->num_sequences();
    if (static_cast<int64_t>(running_.size()) + count > options_.max_running) return;
    const int64_t longest = group == nullptr ? sequence.num_tokens() : group->longest();
    const int64_t next = sequence.request.pooling == Pooling::kNone ? 1 : 0;
    if (!TakeLease(&sequence, longest + next, ForksOf(sequence.prompt_length, count), promised)) return;
    const int64_t encoder_tokens = sequence.encoded ? 0 : sequence.num_encoder_tokens();
    sequence.step_decodes = sequence.decoding();
    sequence.step_tokens = ChunkTokens(sequence, limit - encoder_tokens, limit - encoder_tokens);
    const absl::Status status = sequence.step_tokens > 0 ? sequence.lease.Grow(sequence.step_tokens) : absl::OkStatus();
    if (!status.ok()) {
      ABSL_RAW_LOG(FATAL, "what was admitted does not fit: %s", status.ToString().c_str());
    }
    budget -= encoder_tokens + sequence.step_tokens;
    MoveToRunning(first - waiting_.begin(), now);
    promised += PromisedBytes(sequence);
  }
}

// Gives the sequence a lease with as much of its cache as there is. The sources, best first:
//   1. its own lease, if its swap-out has not ended;
//   2. its own snapshot, or a prefix in a tier below the arena;
//   3. what the prefix index holds.
// The rest is computed.
bool Scheduler::TakeLease(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised) {
  const auto fits = [&](const SequenceLease& lease) {
    const int64_t missing = cache_->MissingBytes(lease, length, options_.prefill_chunk_tokens, forks);
    return missing + promised <= cache_->available_bytes();
  };
  if (swap_.swapping_out() == sequence) return swap_.CancelSwapOut(fits);
  if (StillLacksRoom(*sequence)) return false;
  lacked_room_ = LackedRoom();
  sequence->lease = cache_->NewLease(sequence->num_encoder_tokens());
  sharing_.Adopt(sequence);
  const SwapManager::SwapInResult swapped = swap_.SwapIn(sequence, plan_start_, running_.empty(), fits);
  if (swapped == SwapManager::SwapInResult::kNoRoom) {
    sequence->lease = cache_->NewLease(sequence->num_encoder_tokens());
    sharing_.Adopt(sequence);
  } else if (swapped != SwapManager::SwapInResult::kNothing) {
    return swapped == SwapManager::SwapInResult::kTaken;
  }
  swap_.CancelSwapIn();
  const bool waits = sharing_.WaitsForPrefix(*sequence, running_);
  if (!waits && fits(sequence->lease)) return true;
  sequence->lease = SequenceLease();
  if (!waits) {
    lacked_room_ = {
        .key = sequence->request.key, .num_running = running_.size(), .available_bytes = cache_->available_bytes()};
  }
  return false;
}

bool Scheduler::StillLacksRoom(const Sequence& sequence) {
  // Looking a long prompt up in the index takes as long as all else that the scheduler does for a step.
  constexpr int64_t kPatience = 16;  // steps; what is published meanwhile may make it need less
  LackedRoom& then = lacked_room_;
  return then.key == sequence.request.key && !running_.empty() && then.num_running == running_.size() &&
         cache_->available_bytes() <= then.available_bytes && ++then.num_steps < kPatience;
}

void Scheduler::MoveToRunning(size_t index, absl::Time now) {
  Sequence& first = *waiting_[index];
  const auto begin = waiting_.begin() + static_cast<int64_t>(index);
  const auto end = std::find_if(begin, waiting_.end(), [&](const auto& other) { return !SameRequest(first, *other); });
  for (auto at = begin; at != end; ++at) {
    CountWaiting(**at, -1);
    (*at)->EndPause(now);
    policy_->OnAdmit(**at);
  }
  const bool from_snapshot = !first.swapped.empty() && first.hit.num_tokens == 0;
  first.swapped.Drop();
  if (!first.ever_admitted()) {
    if (first.lease.shares() && !from_snapshot) {
      // A session that resumes may find its output too.
      const int64_t found = std::min(first.hit.num_tokens, first.prompt_length);
      first.num_cached = found;
      counts_.prefix_queried_tokens += first.prompt_length;
      counts_.prefix_hit_tokens += found;
      counts_.prefix_replayed_tokens += std::min(first.hit.matched_tokens, first.prompt_length) - found;
    }
    first.times.first_scheduled = now;
    first.tokens.reserve(first.prompt_length + first.request.max_tokens);
    first.drafts.reserve(first.request.draft_tokens);
    first.prompt_logprobs.entries.reserve((first.prompt_length - 1) * first.prompt_logprobs.entries_per_token);
  }
  std::move(begin, end, std::back_inserter(running_));
  waiting_.erase(begin, end);
  if (first.group == nullptr) return;
  for (std::unique_ptr<Sequence>& other : first.group->MakeOthers()) {
    policy_->OnAdmit(*other);
    running_.push_back(std::move(other));
  }
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
  row.sample = end == sequence->num_tokens() && request.pooling == Pooling::kNone &&
               (sequence->group == nullptr || sequence->group->forked);
  row.sampling = &request.sampling;
  if (const int64_t last = std::min(end, sequence->prompt_length - 1); sequence->wants_scores()) {
    const int64_t first = sequence->num_scored;
    row.first_scored = first - start;
    row.num_scores = sequence->prompt_logprobs.entries_per_token;
    if (last > first) row.scored = absl::MakeConstSpan(sequence->tokens).subspan(first + 1, last - first);
  }
  AddPooling(*sequence, end, &row);
  row.history = absl::MakeConstSpan(sequence->tokens).first(end);
  row.prompt_length = sequence->prompt_length;
  row.sequence_length = sequence->num_tokens();
  if (row.sample) {
    AddBans(sequence, &row);
    if (sequence->num_generated() == 0) row.forced = request.forced_first;
    const bool last = sequence->num_generated() + 1 == request.max_tokens && request.constraint == nullptr;
    if (last && !request.forced_last.empty()) row.forced = request.forced_last;
    row.rank_allowed = sequence->group != nullptr && sequence->group->search != nullptr;
    if (sequence->constraint.applies()) row.masks = mask_workers_.Add(&sequence->constraint, row.drafts);
  }
  if (!sequence->encoded) row.encoder_tokens = request.encoder_tokens;
  sequence->encoded = true;
  plan_.num_tokens += sequence->step_tokens + static_cast<int64_t>(row.encoder_tokens.size());
  planned_.push_back(sequence);
}

}  // namespace berth
