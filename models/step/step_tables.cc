#include "models/step/step_tables.h"

#include <algorithm>

namespace berth {

void RaggedRows::Clear() {
  token_ids.clear();
  positions.clear();
  rows.clear();
  lengths.clear();
  tiles.clear();
  for (auto& of_group : blocks) of_group.clear();
  longest_row = 0;
}

void RaggedRows::AddRow(int64_t start, int64_t length, std::initializer_list<absl::Span<const int32_t>> parts) {
  const int64_t first = num_tokens();
  for (const absl::Span<const int32_t> part : parts) token_ids.insert(token_ids.end(), part.begin(), part.end());
  const int64_t count = num_tokens() - first;
  for (int64_t i = 0; i < count; ++i) positions.push_back(start + i);
  for (int64_t query = 0; query < count; query += ops::kQueryTile) {
    tiles.push_back(num_rows());
    tiles.push_back(query);
  }
  rows.push_back({.first_token = first, .num_tokens = count, .start = start});
  lengths.push_back(length);
  longest_row = std::max(longest_row, count);
}

int64_t KeySplits::Add(int64_t tokens, int64_t keys) {
  const int64_t first = partials;
  const int64_t splits = ops::NumSplits(keys);
  most = std::max(most, splits);
  partials += tokens * splits;
  return first;
}

}  // namespace berth
