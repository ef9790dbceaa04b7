#include "models/sampling/device_sampler.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "models/ops/backend.h"
#include "models/sampling/philox.h"
#include "models/sampling/sampler.h"
#include "models/token_constraint.h"

namespace berth {
namespace {

using Masks = absl::Span<const uint32_t* const>;

// Rows that a device chooses for at once: near its number of multiprocessors.
constexpr int64_t kMostScratch = 112;

// The kernels' answer is one tensor of int32: the tokens, then the logprobs' entries.
constexpr int64_t kEntryInts = sizeof(ops::LogprobEntry) / sizeof(int32_t);

bool IsGreedy(const StepRow* row) { return row->sampling->temperature == 0.0f; }
bool IsOnlyGreedy(const StepRow* row) {
  return IsGreedy(row) && row->sampling->num_logprobs < 0 && !ChangesLogits(*row);
}
bool IsCovered(const StepRow* row) { return row->sampling->num_logprobs <= ops::kMostTop; }

// Without edits and logprobs.
ops::SampleParams ParamsOf(const StepRow& row) {
  if (IsGreedy(&row)) return {};
  const SamplingParams& p = *row.sampling;
  return {.inverse_temperature = 1.0 / static_cast<double>(p.temperature),
          .uniform = UniformAt(p.seed, SampledPosition(row)),
          .top_p = p.top_p,
          .min_p = std::clamp(static_cast<double>(p.min_p), 0.0, 1.0),
          .top_k = std::max(p.top_k, 0)};
}

// The masks of the rows that have one, on the device.
class DeviceMasks {
 public:
  // Adds them to what will be copied.
  DeviceMasks(Masks masks, int64_t vocab, StagingBuffer* staging) : words_per_mask_(PaddedWords(vocab)) {
    std::vector<int32_t> mask_of;
    int32_t count = 0;
    for (const uint32_t* mask : masks) {
      mask_of.push_back(mask == nullptr ? -1 : count++);
      if (mask == nullptr) continue;
      const int64_t at = staging->AddBytes(mask, MaskWords(vocab) * static_cast<int64_t>(sizeof(uint32_t)));
      if (count == 1) words_ = at;
    }
    if (words_ >= 0) mask_of_ = staging->Add(mask_of);
  }
  bool empty() const { return words_ < 0; }
  // REQUIRES: the buffer was copied to `copy`.
  ops::MaskArgs In(const at::Tensor& copy) const {
    if (empty()) return {};
    const char* const base = static_cast<const char*>(copy.const_data_ptr());
    return {.words = reinterpret_cast<const uint32_t*>(base + words_),
            .mask_of = reinterpret_cast<const int32_t*>(base + mask_of_),
            .words_per_mask = words_per_mask_,
            .no_allowed_token = RowResult::kNoAllowedToken};
  }

 private:
  // The buffer pads each mask.
  static int64_t PaddedWords(int64_t vocab) {
    constexpr int64_t kWords = StagingBuffer::kAlignment / sizeof(uint32_t);
    return (MaskWords(vocab) + kWords - 1) / kWords * kWords;
  }

  const int64_t words_per_mask_;
  int64_t words_ = -1;  // offsets in the buffer
  int64_t mask_of_ = 0;
};

// entries: the row's own.
void FillLogprobs(const ops::LogprobEntry* entries, int64_t num_top, RowResult* result) {
  result->logprob = entries[0].logprob;
  for (int64_t i = 1; i <= num_top && entries[i].token >= 0; ++i) {
    result->top.push_back({entries[i].token, entries[i].logprob});
  }
}

}  // namespace

int DeviceSampler::Greedy(const at::Tensor& logits, Masks masks, const at::Tensor& out) {
  const DeviceMasks device_masks(masks, logits.size(1), &staging_);
  if (!device_masks.empty()) staging_.Copy(logits.device(), &copy_);
  const ops::GreedyArgs args = {.logits = logits.const_data_ptr(),
                                .rows = logits.size(0),
                                .stride = logits.size(1),
                                .vocab = logits.size(1),
                                .tokens = out.data_ptr<int32_t>(),
                                .bad_token = RowResult::kBadLogits,
                                .masks = device_masks.In(copy_)};
  return ops::RunOnCuda(&ops::cuda::Kernels::greedy, ops::TypeOf(logits), args, ops::LaunchParamsFor(logits),
                        *execution_);
}

ops::LogitEdits DeviceSampler::Stage(const StepRow& row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const SamplingParams& p = *row.sampling;
  ops::LogitEdits edits = {.repetition_penalty = p.repetition_penalty,
                           .presence_penalty = p.presence_penalty,
                           .frequency_penalty = p.frequency_penalty,
                           .is_forced = row.forced.empty() ? 0 : 1};
  biases_.clear();
  for (int32_t token : row.forced) biases_.push_back({token, 0});
  if (row.forced.empty()) {
    for (auto [token, bias] : p.logit_bias) biases_.push_back({token, bias});
    for (int32_t token : row.banned) biases_.push_back({token, -kInfinity});
    absl::Span<const int32_t> history = row.history;
    const int64_t size = static_cast<int64_t>(history.size());
    const int64_t prompt = std::clamp<int64_t>(row.prompt_length, 0, size);
    if (p.repetition_penalty != 1.0f) {
      edits.num_prompt = prompt;
    } else {
      history.remove_prefix(static_cast<size_t>(prompt));
      if (p.presence_penalty == 0.0f && p.frequency_penalty == 0.0f) history = {};
    }
    edits.num_history = static_cast<int64_t>(history.size());
    edits.history = staging_.AddBytes(history.data(), edits.num_history * static_cast<int64_t>(sizeof(int32_t)));
  }
  edits.num_biases = static_cast<int64_t>(biases_.size());
  edits.biases = staging_.Add(biases_);
  return edits;
}

int64_t DeviceSampler::Describe(absl::Span<const StepRow* const> rows, int64_t vocab) {
  params_.clear();
  edits_.clear();
  int64_t num_logprobs = 0;
  for (const StepRow* row : rows) {
    ops::SampleParams params = ParamsOf(*row);
    if (ChangesLogits(*row)) {
      params.edits = static_cast<int64_t>(edits_.size());
      edits_.push_back(Stage(*row));
    }
    if (row->sampling->num_logprobs >= 0) {
      params.num_top = std::min<int64_t>(row->sampling->num_logprobs, vocab);
      params.logprobs = num_logprobs;
      params.sums_allowed = row->sampling->logprobs_after_mask ? 1 : 0;
      params.ranks_allowed = row->sampling->logprobs_after_mask || row->rank_allowed ? 1 : 0;
      num_logprobs += 1 + params.num_top;
    }
    params_.push_back(params);
  }
  return num_logprobs;
}

int DeviceSampler::Sample(const at::Tensor& logits, absl::Span<const StepRow* const> rows, Masks masks,
                          const at::Tensor& out) {
  const int64_t vocab = logits.size(1);
  const int64_t params = staging_.Add(params_);
  const int64_t edits = staging_.Add(edits_);
  const DeviceMasks device_masks(masks, vocab, &staging_);
  staging_.Copy(logits.device(), &copy_);
  const char* const tables = static_cast<const char*>(copy_.const_data_ptr());
  const int64_t num_scratch = std::min(kMostScratch, logits.size(0));
  const at::Tensor scratch =
      at::empty({ops::SampleScratchBytes(num_scratch, vocab, !edits_.empty())}, logits.options().dtype(at::kByte));
  int32_t* const tokens = out.data_ptr<int32_t>();
  const ops::SampleArgs args = {.logits = logits.const_data_ptr(),
                                .rows = logits.size(0),
                                .stride = vocab,
                                .vocab = vocab,
                                .params = reinterpret_cast<const ops::SampleParams*>(tables + params),
                                .edits = reinterpret_cast<const ops::LogitEdits*>(tables + edits),
                                .tables = tables,
                                .scratch = scratch.data_ptr(),
                                .num_scratch = num_scratch,
                                .has_edits = !edits_.empty(),
                                .tokens = tokens,
                                .logprobs = reinterpret_cast<ops::LogprobEntry*>(tokens + rows.size()),
                                .bad_token = RowResult::kBadLogits,
                                .masks = device_masks.In(copy_)};
  return ops::RunOnCuda(&ops::cuda::Kernels::sample, ops::TypeOf(logits), args, ops::LaunchParamsFor(logits),
                        *execution_);
}

bool DeviceSampler::Choose(const at::Tensor& logits, absl::Span<const StepRow* const> rows, Masks masks,
                           absl::Span<RowResult* const> results) {
  if (!std::all_of(rows.begin(), rows.end(), IsCovered)) return false;
  const at::Tensor dense = logits.contiguous();
  const bool greedy = std::all_of(rows.begin(), rows.end(), IsOnlyGreedy);
  staging_.Clear();
  const int64_t num_logprobs = greedy ? 0 : Describe(rows, dense.size(1));
  const int64_t num_rows = dense.size(0);
  at::Tensor out = at::empty({num_rows + num_logprobs * kEntryInts}, dense.options().dtype(at::kInt));
  if (!ops::IsLaunched(greedy ? Greedy(dense, masks, out) : Sample(dense, rows, masks, out))) return false;
  out = out.to(at::kCPU);
  const int32_t* const tokens = out.const_data_ptr<int32_t>();
  const auto* const entries = reinterpret_cast<const ops::LogprobEntry*>(tokens + num_rows);
  for (size_t i = 0; i < results.size(); ++i) {
    RowResult& result = *results[i];
    result.token = tokens[i];
    result.logprob = 0;
    result.top.clear();
    if (greedy || result.token < 0 || params_[i].num_top < 0) continue;
    FillLogprobs(entries + params_[i].logprobs, params_[i].num_top, &result);
  }
  return true;
}

}  // namespace berth
