// What sequences take from the prefix index, and give it.
#include <algorithm>
#include <utility>

#include "scheduler/output_group.h"
#include "scheduler/scheduler.h"

namespace berth {

bool Scheduler::MayShare(const Sequence& sequence) const {
  return options_.share_prefixes && sequence.request.share_prefix && sequence.request.encoder_tokens.empty() &&
         (options_.share_length == 0 || sequence.num_tokens() <= options_.share_length);
}

int64_t Scheduler::NumShareable(const Sequence& sequence) const {
  const bool prompt_only = options_.aligned_prefill_chunks || cache_->plan().only_prompts_share;
  return prompt_only ? sequence.prompt_length : sequence.num_tokens();
}

void Scheduler::Adopt(Sequence* sequence) {
  sequence->hit = PrefixHit();
  if (!MayShare(*sequence)) return;
  sequence->hit = sequence->lease.Adopt(sequence->request.cache_salt, ShareableTokens(*sequence), ShareMultiple());
}

absl::Span<const int32_t> Scheduler::ShareableTokens(const Sequence& sequence) const {
  if (!MayShare(sequence)) return {};
  int64_t count = NumShareable(sequence);
  if (sequence.group != nullptr) count = std::min(count, OutputGroup::ForkPoint(sequence));
  return absl::MakeConstSpan(sequence.tokens).first(count);
}

bool Scheduler::WaitsForPrefix(const Sequence& sequence) const {
  if (!sequence.lease.shares()) return false;
  const int64_t shared = sequence.hit.num_tokens;
  for (const std::unique_ptr<Sequence>& other : running_) {
    const int64_t computed = other->num_computed() - other->step_tokens;
    const int64_t known = std::min(NumShareable(*other), NumShareable(sequence) - 1);
    if (!other->lease.shares() || computed >= known || shared + cache_->plan().block_tokens > known ||
        other->request.cache_salt != sequence.request.cache_salt) {
      continue;
    }
    const auto [end, unused] =
        std::mismatch(sequence.tokens.begin(), sequence.tokens.begin() + known, other->tokens.begin());
    const int64_t common = end - sequence.tokens.begin();
    if (computed < common && common >= shared + cache_->plan().block_tokens) return true;
  }
  return false;
}

void Scheduler::CountPrefix(Sequence* sequence) {
  if (!sequence->lease.shares()) return;
  const PrefixHit& hit = sequence->hit;
  sequence->num_cached = hit.num_tokens;
  counts_.prefix_queried_tokens += sequence->prompt_length;
  counts_.prefix_hit_tokens += hit.num_tokens;
  counts_.prefix_replayed_tokens += hit.matched_tokens - hit.num_tokens;
}

void Scheduler::Publish(Sequence* sequence, bool at_end) {
  SequenceLease& lease = sequence->lease;
  if (!lease.shares()) return;
  const int64_t computed = lease.num_tokens();
  if (!MayShare(*sequence)) {
    lease.StopSharing();
  } else if (computed > NumShareable(*sequence)) {
    return;
  } else if (options_.aligned_prefill_chunks) {
    const bool whole = computed % options_.prefill_chunk_tokens == 0;
    if (whole) lease.Publish(sequence->tokens, /*checkpoint=*/true);
  } else {
    const bool turn_ends = at_end || computed == sequence->prompt_length || computed == sequence->hit.matched_tokens;
    const bool on_grid = options_.state_checkpoint_tokens > 0 && computed % options_.state_checkpoint_tokens == 0;
    lease.Publish(sequence->tokens, turn_ends || on_grid);
  }
}

}  // namespace berth
