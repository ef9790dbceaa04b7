#include "models/sampling/sampler_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "models/sampling/philox.h"
#include "models/sampling/sampler.h"

namespace berth {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kChunkRows = 32;  // bounds the memory of the doubles

// A host matrix of doubles that travels to the device in one piece: one column per quantity.
class Columns {
 public:
  Columns(int64_t rows, int64_t columns) : rows_(rows), columns_(columns), values_(rows * columns) {}
  void Set(int64_t row, int64_t column, double value) { values_[row * columns_ + column] = value; }
  void ToDevice(at::Device device) {
    tensor_ = at::from_blob(values_.data(), {rows_, columns_}, at::kDouble).clone().to(device);
  }
  // [rows, 1], float64.
  at::Tensor operator[](int64_t column) const { return tensor_.slice(1, column, column + 1); }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<double> values_;
  at::Tensor tensor_;
};

// What happens to one logit before the choice.
struct LogitEdit {
  float bias = 0;
  bool banned = false;
  bool seen = false;  // in prompt or output
  int64_t count = 0;  // in the output
};

std::map<int32_t, LogitEdit> EditsOf(const StepRow& row, int64_t vocab) {
  std::map<int32_t, LogitEdit> edits;
  for (auto [token, bias] : row.sampling->logit_bias) edits[token].bias += bias;
  for (int32_t token : row.banned) edits[token].banned = true;
  for (size_t i = 0; i < row.history.size(); ++i) {
    LogitEdit& edit = edits[row.history[i]];
    edit.seen = true;
    edit.count += static_cast<int64_t>(i) >= row.prompt_length ? 1 : 0;
  }
  std::erase_if(edits, [vocab](const auto& edit) { return edit.first < 0 || edit.first >= vocab; });
  return edits;
}

// logits with only the forced tokens left in the rows that have some, all at 0.
at::Tensor ForceTokens(const at::Tensor& logits, absl::Span<const StepRow* const> rows) {
  at::Tensor edited = logits;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r]->forced.empty()) continue;
    if (edited.is_same(logits)) edited = logits.clone();
    const at::Tensor row = edited.select(0, static_cast<int64_t>(r));
    row.fill_(-kInfinity);
    for (int32_t token : rows[r]->forced) {
      if (token >= 0 && token < logits.size(1)) row.narrow(0, token, 1).fill_(0);
    }
  }
  return edited;
}

// logits after bias, bans and penalties: gathers the edited logits of all rows, changes them, and puts them back.
at::Tensor EditLogits(const at::Tensor& logits, absl::Span<const StepRow* const> rows) {
  enum { kIndex, kBias, kBanned, kPenalty, kFrequency, kCount, kPresence, kNumColumns };
  const int64_t vocab = logits.size(1);
  std::vector<std::vector<double>> lines;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!ChangesLogits(*rows[r])) continue;
    const SamplingParams& p = *rows[r]->sampling;
    for (const auto& [token, edit] : EditsOf(*rows[r], vocab)) {
      lines.push_back({static_cast<double>(static_cast<int64_t>(r) * vocab + token), edit.bias, double(edit.banned),
                       edit.seen ? p.repetition_penalty : 1.0, p.frequency_penalty, double(edit.count),
                       edit.count > 0 ? p.presence_penalty : 0.0});
    }
  }
  if (lines.empty()) return logits;
  Columns columns(static_cast<int64_t>(lines.size()), kNumColumns);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (int64_t j = 0; j < kNumColumns; ++j) columns.Set(static_cast<int64_t>(i), j, lines[i][j]);
  }
  columns.ToDevice(logits.device());
  const auto column = [&](int64_t j) { return columns[j].squeeze(1).to(at::kFloat); };

  const at::Tensor index = columns[kIndex].squeeze(1).to(at::kLong);
  const at::Tensor penalty = column(kPenalty);
  at::Tensor edited = logits.clone().view({-1});
  at::Tensor values = edited.index_select(0, index) + column(kBias);
  values = values.masked_fill(column(kBanned) != 0, -kInfinity);
  values = at::where(values > 0, values / penalty, values * penalty);
  values = values - column(kFrequency) * column(kCount);
  values = values - column(kPresence);
  edited.index_copy_(0, index, values);
  return edited.view_as(logits);
}

using Masks = absl::Span<const uint32_t* const>;

bool HasMask(Masks masks) {
  return std::any_of(masks.begin(), masks.end(), [](const uint32_t* mask) { return mask != nullptr; });
}

// [rows, vocab] bool, on the device: the tokens that the masks hide. REQUIRES: HasMask.
at::Tensor HiddenTokens(const at::Tensor& logits, Masks masks) {
  at::Tensor hidden = at::zeros(logits.sizes(), at::kBool);
  const int64_t vocab = logits.size(1);
  bool* const out = hidden.data_ptr<bool>();
  for (size_t r = 0; r < masks.size(); ++r) {
    for (int64_t i = 0; masks[r] != nullptr && i < vocab; ++i) {
      out[static_cast<int64_t>(r) * vocab + i] = (masks[r][i / 32] >> (i % 32) & 1) == 0;
    }
  }
  return hidden.to(logits.device());
}

// Descending, the lower id first among equals.
std::pair<at::Tensor, at::Tensor> Rank(const at::Tensor& logits) {
  auto [values, ids] = at::sort(logits, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  return {values, ids};
}

// [rows, 1] int64: the drawn token of each row. sorted, ids: as Rank gives them.
at::Tensor DrawTokens(const at::Tensor& sorted, const at::Tensor& ids, absl::Span<const StepRow* const> rows) {
  enum { kInverseTemperature, kTopK, kTopP, kMinP, kUniform, kNumColumns };
  const int64_t vocab = sorted.size(1);
  Columns columns(sorted.size(0), kNumColumns);
  for (int64_t r = 0; r < sorted.size(0); ++r) {
    const SamplingParams& p = *rows[r]->sampling;
    columns.Set(r, kInverseTemperature, p.temperature == 0.0f ? 1.0 : 1.0 / static_cast<double>(p.temperature));
    columns.Set(r, kTopK, static_cast<double>(p.top_k > 0 ? std::min<int64_t>(p.top_k, vocab) : vocab));
    columns.Set(r, kTopP, p.top_p < 1.0f ? p.top_p : kInfinity);
    columns.Set(r, kMinP, std::min(1.0f, p.min_p));
    columns.Set(r, kUniform, UniformAt(p.seed, SampledPosition(*rows[r])));
  }
  columns.ToDevice(sorted.device());

  const at::Tensor max = sorted.slice(1, 0, 1).to(at::kDouble);
  at::Tensor weights = ((sorted.to(at::kDouble) - max) * columns[kInverseTemperature]).exp();
  const at::Tensor kth = sorted.gather(1, columns[kTopK].to(at::kLong) - 1);
  weights = weights.masked_fill(sorted < kth, 0.0);

  const at::Tensor cumulative = weights.cumsum(1);
  const at::Tensor limit = columns[kTopP] * cumulative.slice(1, vocab - 1, vocab);
  at::Tensor keep = (cumulative - weights) < limit;
  keep.slice(1, 0, 1).fill_(true);
  keep = keep.logical_and(weights >= columns[kMinP]);
  weights = weights.masked_fill(keep.logical_not(), 0.0);

  // Back in ascending id, as the draw wants it.
  const at::Tensor by_id = at::zeros_like(weights).scatter(1, ids, weights);
  const at::Tensor sums = by_id.cumsum(1).contiguous();
  const at::Tensor target = (columns[kUniform] * sums.slice(1, vocab - 1, vocab)).contiguous();
  const at::Tensor found = at::searchsorted(sums, target, /*out_int32=*/false, /*right=*/true);
  const at::Tensor positions = at::arange(vocab, at::TensorOptions(at::kLong).device(sorted.device()));
  const at::Tensor last = at::where(by_id > 0, positions, 0).amax(1, /*keepdim=*/true);
  return at::minimum(found, last);
}

// Columns 1 and on of SampleChunk's result. ranked: Rank(logits), where that is known.
std::vector<at::Tensor> LogprobColumns(const at::Tensor& logits, const at::Tensor& token, const at::Tensor& hidden,
                                       const std::pair<at::Tensor, at::Tensor>* ranked,
                                       absl::Span<const StepRow* const> rows, int64_t num_top) {
  at::Tensor shown = logits;   // what `top` is of
  at::Tensor summed = logits;  // what logprobs are relative to
  if (hidden.defined()) {
    std::vector<double> flags(2 * rows.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      flags[2 * r] = rows[r]->sampling->logprobs_after_mask || rows[r]->rank_allowed;
      flags[2 * r + 1] = rows[r]->sampling->logprobs_after_mask;
    }
    const at::Tensor table =
        at::from_blob(flags.data(), {static_cast<int64_t>(rows.size()), 2}, at::kDouble).clone().to(logits.device());
    shown = logits.masked_fill(hidden.logical_and(table.slice(1, 0, 1) != 0), -kInfinity);
    summed = logits.masked_fill(hidden.logical_and(table.slice(1, 1, 2) != 0), -kInfinity);
  }
  const auto [sorted, ids] = ranked != nullptr && shown.is_same(logits) ? *ranked : Rank(shown);
  const at::Tensor max = summed.amax(1, true).to(at::kDouble);
  at::Tensor log_sum = (summed.to(at::kDouble) - max).exp().sum(1, true).log() + max;
  log_sum = log_sum.masked_fill(max == -kInfinity, 0);
  const at::Tensor top = sorted.slice(1, 0, num_top).to(at::kDouble);
  return {logits.gather(1, token.clamp(0, logits.size(1) - 1)).to(at::kDouble) - log_sum,
          (top > -kInfinity).sum(1, true).to(at::kDouble), ids.slice(1, 0, num_top).to(at::kDouble), top - log_sum};
}

// [rows, 3 + 2 * num_top] float64: token (or kBadLogits, kNoAllowedToken), logprob, number of top tokens that are
// possible, their ids, their logprobs. num_top < 0: no logprobs, [rows, 1].
at::Tensor SampleChunk(const at::Tensor& logits, absl::Span<const StepRow* const> rows, Masks masks, int64_t num_top) {
  const at::Tensor unmasked = ForceTokens(EditLogits(logits, rows), rows);
  at::Tensor edited = unmasked;
  at::Tensor hidden;
  if (HasMask(masks)) {
    hidden = HiddenTokens(logits, masks);
    edited = unmasked.masked_fill(hidden, -kInfinity);
  }
  const std::pair<at::Tensor, at::Tensor> ranked = Rank(edited);
  const auto& [sorted, ids] = ranked;

  std::vector<double> greedy(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) greedy[r] = rows[r]->sampling->temperature == 0.0f;
  const at::Tensor is_greedy =
      at::from_blob(greedy.data(), {static_cast<int64_t>(rows.size()), 1}, at::kDouble).clone().to(logits.device());
  at::Tensor token = at::where(is_greedy != 0, ids.slice(1, 0, 1), DrawTokens(sorted, ids, rows));

  // NaN, +inf, and rows without any possible token, forced or not. `x < inf` is false for the first two.
  const at::Tensor good = (logits < kInfinity)
                              .all(1, true)
                              .logical_and((logits > -kInfinity).any(1, true))
                              .logical_and((unmasked < kInfinity).all(1, true))
                              .logical_and((unmasked > -kInfinity).any(1, true));
  token = at::where(sorted.slice(1, 0, 1) > -kInfinity, token, int64_t{RowResult::kNoAllowedToken});
  std::vector<at::Tensor> columns = {at::where(good, token, int64_t{RowResult::kBadLogits}).to(at::kDouble)};
  if (num_top < 0) return columns[0];
  const auto* const known = edited.is_same(logits) ? &ranked : nullptr;
  for (const at::Tensor& column : LogprobColumns(logits, token, hidden, known, rows, num_top)) {
    columns.push_back(column);
  }
  return at::cat(columns, 1);
}

void FillResult(const double* line, int64_t num_top, const SamplingParams& params, RowResult* result) {
  result->token = static_cast<int32_t>(line[0]);
  result->logprob = 0;
  result->top.clear();
  if (params.num_logprobs < 0 || result->token < 0) return;
  result->logprob = static_cast<float>(line[1]);
  const int64_t count = std::min<int64_t>(params.num_logprobs, static_cast<int64_t>(line[2]));
  for (int64_t i = 0; i < count; ++i) {
    result->top.push_back({static_cast<int32_t>(line[3 + i]), static_cast<float>(line[3 + num_top + i])});
  }
}

}  // namespace

void SampleRowsReference(const at::Tensor& logits, absl::Span<const StepRow* const> rows,
                         absl::Span<const uint32_t* const> masks, absl::Span<RowResult* const> results) {
  if (rows.empty()) return;
  int64_t num_top = -1;
  for (const StepRow* row : rows) num_top = std::max<int64_t>(num_top, row->sampling->num_logprobs);
  num_top = std::min(num_top, logits.size(1));

  std::vector<at::Tensor> chunks;
  for (size_t begin = 0; begin < rows.size(); begin += kChunkRows) {
    const absl::Span<const StepRow* const> chunk = rows.subspan(begin, kChunkRows);
    const auto first = static_cast<int64_t>(begin);
    const Masks chunk_masks = masks.empty() ? masks : masks.subspan(begin, kChunkRows);
    const at::Tensor chunk_logits = logits.slice(0, first, first + static_cast<int64_t>(chunk.size()));
    chunks.push_back(SampleChunk(chunk_logits, chunk, chunk_masks, num_top));
  }
  const at::Tensor table = at::cat(chunks, 0).to(at::kCPU).contiguous();
  const double* lines = table.const_data_ptr<double>();
  for (size_t r = 0; r < rows.size(); ++r) {
    FillResult(lines + static_cast<int64_t>(r) * table.size(1), num_top, *rows[r]->sampling, results[r]);
  }
}

}  // namespace berth
