#include "scheduler/tiers/prefix_sharing.h"

#include <algorithm>

#include "scheduler/output/output_group.h"

namespace berth {

bool PrefixSharing::MayShare(const Sequence& sequence) const {
  return options_.share_prefixes && sequence.request.share_prefix && sequence.request.encoder_tokens.empty() &&
         (options_.max_shareable_tokens == 0 || sequence.num_tokens() <= options_.max_shareable_tokens);
}

int64_t PrefixSharing::NumShareable(const Sequence& sequence) const {
  const bool prompt_only = options_.aligned_prefill_chunks || plan_->share_prompts_only;
  return prompt_only ? sequence.prompt_length : sequence.num_tokens();
}

absl::Span<const int32_t> PrefixSharing::ShareableTokens(const Sequence& sequence) const {
  if (!MayShare(sequence)) return {};
  int64_t count = NumShareable(sequence);
  if (sequence.group != nullptr) count = std::min(count, OutputGroup::ForkPoint(sequence));
  // A token that is not computed has no logits and no hidden state.
  count = std::min(count, sequence.num_adoptable() + 1);
  return absl::MakeConstSpan(sequence.tokens).first(count);
}

void PrefixSharing::Adopt(Sequence* sequence) const {
  sequence->hit = PrefixHit();
  if (!MayShare(*sequence)) return;
  sequence->hit = sequence->lease.Adopt(sequence->request.cache_salt, ShareableTokens(*sequence), multiple());
}

bool PrefixSharing::WaitsForPrefix(const Sequence& sequence,
                                   absl::Span<const std::unique_ptr<Sequence>> running) const {
  if (!sequence.lease.shares() || sequence.wants_scores() || sequence.wants_states()) return false;
  // At least this many tokens in common make it worth to wait: a block more than the index has.
  const int64_t wanted = sequence.hit.num_tokens + plan_->block_tokens;
  for (const std::unique_ptr<Sequence>& other : running) {
    const int64_t computed = other->num_computed() - other->step_tokens;
    const int64_t known = std::min(NumShareable(*other), NumShareable(sequence) - 1);
    if (!other->lease.shares() || computed >= known || wanted > known ||
        other->request.cache_salt != sequence.request.cache_salt) {
      continue;
    }
    const auto [end, unused] =
        std::mismatch(sequence.tokens.begin(), sequence.tokens.begin() + known, other->tokens.begin());
    const int64_t common = end - sequence.tokens.begin();
    if (computed < common && common >= wanted) return true;
  }
  return false;
}

int64_t PrefixSharing::ChunkTokens(const Sequence& sequence, int64_t wanted, int64_t limit, int64_t room) const {
  if (!options_.aligned_prefill_chunks) return std::min(wanted, limit);
  const int64_t grid = options_.prefill_chunk_tokens;
  const int64_t whole = std::min(wanted, grid - sequence.num_computed() % grid);
  // What is generated is not shared; an encoder's input must come with the first chunk, and leaves it less room.
  if (sequence.num_computed() >= sequence.prompt_length || sequence.num_encoder_tokens() > 0) {
    return std::min(whole, limit);
  }
  return limit > 0 && whole <= room ? whole : 0;
}

void PrefixSharing::MarkStates(Sequence* sequence) const {
  SequenceLease& lease = sequence->lease;
  const int64_t end = lease.num_tokens();
  const bool prefills = sequence->step_tokens > 1 && sequence->drafts.empty();
  if (!prefills || plan_->state_group() < 0 || !lease.shares() || options_.aligned_prefill_chunks ||
      end > NumShareable(*sequence) || !MayShare(*sequence)) {
    return;
  }
  for (const int64_t position : positions_.Between(*sequence, end - sequence->step_tokens, end)) {
    if (!lease.MarkStates(position)) return;
  }
}

void PrefixSharing::Publish(Sequence* sequence, bool at_end) const {
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
    lease.Publish(sequence->tokens, at_end || positions_.Keeps(*sequence, computed));
  }
}

PrefixSharing::Lengths PrefixSharing::LengthsToKeep(const Sequence& sequence) const {
  Lengths lengths;
  if (!sequence.lease.shares() || !MayShare(sequence)) return lengths;
  const int64_t computed = std::min(sequence.num_computed(), NumShareable(sequence));
  const auto keep = [&](int64_t length) {
    if (length > 0 && length <= computed) lengths.push_back(length);
  };
  if (options_.aligned_prefill_chunks) {
    keep(computed - computed % options_.prefill_chunk_tokens);
    return lengths;
  }
  keep(computed);
  if (plan_->state_group() < 0) return lengths;
  // A later sequence starts from a state, so keep the states where it may depart from this one. These are where this
  // prompt departed from a known one, and the last end of a message and the last point of the grid within the prompt.
  keep(sequence.hit.matched_tokens);
  keep(positions_.OnGrid(sequence.prompt_length - 1));
  const std::vector<int32_t>& ends = sequence.request.message_ends;
  if (!ends.empty() && positions_.Keeps(sequence, ends.back())) keep(ends.back());
  return lengths;
}

}  // namespace berth
