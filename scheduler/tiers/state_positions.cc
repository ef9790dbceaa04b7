#include "scheduler/tiers/state_positions.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "scheduler/scheduler_options.h"

namespace berth {

StatePositions::StatePositions(int64_t state_checkpoint_tokens, int64_t state_bytes) : fixed_(state_checkpoint_tokens) {
  // Powers of two: where the spacing doubles, the grids of both spacings have a point.
  while (least_spacing_ * kGridBytesPerToken < state_bytes) least_spacing_ *= 2;
}

int64_t StatePositions::Spacing(int64_t position) const {
  if (!automatic()) return fixed_;
  return std::max(least_spacing_, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(position))) / 16);
}

int64_t StatePositions::OnGrid(int64_t position) const {
  const int64_t spacing = Spacing(position);
  return spacing == 0 ? 0 : position / spacing * spacing;
}

bool StatePositions::Keeps(const Sequence& sequence, int64_t position) const {
  if (position == sequence.prompt_length || position == sequence.hit.matched_tokens) return true;
  if (OnGrid(position) == position) return true;
  const std::vector<int32_t>& ends = sequence.request.message_ends;
  const auto end = std::lower_bound(ends.begin(), ends.end(), position);
  return automatic() && end != ends.end() && *end == position && KeepsMessageEnd(end - ends.begin(), ends.size());
}

StatePositions::Positions StatePositions::Between(const Sequence& sequence, int64_t start, int64_t end) const {
  Positions positions;
  const auto add = [&](int64_t position) {
    if (position > start && position < end) positions.push_back(position);
  };
  add(sequence.prompt_length);
  add(sequence.hit.matched_tokens);
  const std::vector<int32_t>& ends = sequence.request.message_ends;
  if (automatic()) {
    for (size_t i = std::upper_bound(ends.begin(), ends.end(), start) - ends.begin(); i < ends.size(); ++i) {
      if (ends[i] >= end) break;
      if (KeepsMessageEnd(i, ends.size())) add(ends[i]);
    }
  }
  for (int64_t at = end - 1; (at = OnGrid(at)) > start; --at) add(at);
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  if (const auto size = static_cast<int64_t>(positions.size()); size > kMostMarks) {
    positions.erase(positions.begin(), positions.begin() + (size - kMostMarks));
  }
  return positions;
}

}  // namespace berth
