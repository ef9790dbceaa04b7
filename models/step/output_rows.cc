#include "models/step/output_rows.h"

#include <algorithm>

namespace berth {
namespace {

// Tokens of a row, by their indices in it.
struct Range {
  int64_t first;
  int64_t end;
};

// The tokens from the first whose output is read to the last:
//
//   tokens                       drafts
//   0 1 2 3 4 5 6 7 8 9 10 11 12  13 14
//       |---- scored ---|    |- sample -|
//       |------------ range ------------|
Range ReadTokens(const StepRow& row) {
  Range range = {row.num_tokens(), 0};
  const auto add = [&](int64_t first, int64_t end) {
    if (first >= end) return;
    range = {std::min(range.first, first), std::max(range.end, end)};
  };
  if (row.sample) add(row.num_tokens() - 1 - row.num_drafts(), row.num_tokens());
  add(row.first_scored, row.first_scored + static_cast<int64_t>(row.scored.size()));
  add(row.num_tokens() - row.num_pooled, row.num_tokens());
  return range;
}

// The row with these of its tokens. Its cache is written up to its last token, as before.
StepRow Narrowed(const StepRow& row, const Range& range) {
  StepRow narrowed = row;
  const int64_t known = std::min(range.end, static_cast<int64_t>(row.tokens.size()));
  narrowed.tokens = row.tokens.subspan(range.first, known - range.first);
  narrowed.drafts = row.drafts.first(range.end - known);
  narrowed.start += range.first;
  narrowed.first_scored -= range.first;
  return narrowed;
}

}  // namespace

bool OutputRows::Choose(const StepPlan& step) {
  Clear();
  const auto reads_all = [](const StepRow& row) {
    const Range range = ReadTokens(row);
    return range.first == 0 && range.end == row.num_tokens();
  };
  if (std::all_of(step.rows.begin(), step.rows.end(), reads_all)) return false;
  int64_t first_token = 0;  // of the row
  for (const StepRow& row : step.rows) {
    const Range range = ReadTokens(row);
    for (int64_t token = range.first; token < range.end; ++token) tokens_.push_back(first_token + token);
    if (range.first < range.end) plan_.rows.push_back(Narrowed(row, range));
    first_token += row.num_tokens();
  }
  plan_.num_tokens = static_cast<int64_t>(tokens_.size());
  plan_.num_decode_rows = step.num_decode_rows;
  return true;
}

void OutputRows::Clear() {
  plan_.Clear();
  tokens_.clear();
}

}  // namespace berth
