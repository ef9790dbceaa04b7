#include "models/sampling/sample_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/ops/backend.h"
#include "models/sampling/philox.h"
#include "models/sampling/sampler.h"
#include "models/sampling/sampler_reference.h"
#include "models/step/staging_buffer.h"
#include "models/step/thread_pool.h"
#include "models/token_constraint.h"

namespace berth {
namespace {

// Logits of one task: 7 microseconds of a greedy scan, and more of a draw; see models/ops/parallel.h.
constexpr int64_t kLogitsPerTask = 16384;
// Rows that a device draws for at once: near its number of multiprocessors, in no more memory than the reference takes.
constexpr int64_t kMostScratch = 112;

// Which of its row's drafts the i-th row of logits replaces; kAfterDrafts: it follows the last token.
int64_t DraftOf(int64_t i, absl::Span<const int> row_indices, const StepRow& row) {
  int64_t later = 0;
  while (i + later + 1 < static_cast<int64_t>(row_indices.size()) && row_indices[i + later + 1] == row_indices[i])
    ++later;
  return later == 0 ? kAfterDrafts : row.num_drafts() - later;
}

// What the kernels answer: a token of the model's own distribution, and nothing of probabilities.
bool IsPlain(const StepRow* row) { return row->sampling->num_logprobs < 0 && !ChangesLogits(*row); }
bool IsGreedy(const StepRow* row) { return row->sampling->temperature == 0.0f; }

ops::SampleParams ParamsOf(const StepRow& row) {
  if (IsGreedy(&row)) return {};
  const SamplingParams& p = *row.sampling;
  return {.inverse_temperature = 1.0 / static_cast<double>(p.temperature),
          .uniform = UniformAt(p.seed, SampledPosition(row)),
          .top_p = p.top_p,
          .min_p = std::clamp(static_cast<double>(p.min_p), 0.0, 1.0),
          .top_k = std::max(p.top_k, 0)};
}

using Masks = absl::Span<const uint32_t* const>;

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

int LaunchGreedy(const at::Tensor& logits, Masks masks, const at::Tensor& tokens, const ops::cuda::Kernels& kernels) {
  StagingBuffer staging;
  const DeviceMasks device_masks(masks, logits.size(1), &staging);
  at::Tensor copy;
  if (!device_masks.empty()) staging.Copy(logits.device(), &copy);
  const ops::GreedyArgs args = {.logits = logits.const_data_ptr<float>(),
                                .rows = logits.size(0),
                                .stride = logits.size(1),
                                .vocab = logits.size(1),
                                .tokens = tokens.data_ptr<int32_t>(),
                                .bad_token = RowResult::kBadLogits,
                                .masks = device_masks.In(copy)};
  return kernels.greedy(args, ops::LaunchParamsFor(logits));
}

int LaunchSample(const at::Tensor& logits, absl::Span<const StepRow* const> rows, Masks masks, const at::Tensor& tokens,
                 const ops::cuda::Kernels& kernels) {
  std::vector<ops::SampleParams> params;
  for (const StepRow* row : rows) params.push_back(ParamsOf(*row));
  StagingBuffer staging;
  const int64_t at = staging.Add(params);
  const DeviceMasks device_masks(masks, logits.size(1), &staging);
  at::Tensor copy;
  staging.Copy(logits.device(), &copy);
  const int64_t num_scratch = std::min(kMostScratch, logits.size(0));
  const at::Tensor scratch =
      at::empty({ops::SampleScratchBytes(num_scratch, logits.size(1))}, logits.options().dtype(at::kByte));
  const ops::SampleArgs args = {
      .logits = logits.const_data_ptr<float>(),
      .rows = logits.size(0),
      .stride = logits.size(1),
      .vocab = logits.size(1),
      .params = reinterpret_cast<const ops::SampleParams*>(static_cast<const char*>(copy.const_data_ptr()) + at),
      .scratch = scratch.data_ptr(),
      .num_scratch = num_scratch,
      .tokens = tokens.data_ptr<int32_t>(),
      .bad_token = RowResult::kBadLogits,
      .masks = device_masks.In(copy)};
  return kernels.sample(args, ops::LaunchParamsFor(logits));
}

// One launch and one copy back, which waits for the device. False: no kernel covers the rows, nothing was done.
bool ChooseByKernel(const at::Tensor& logits, absl::Span<const StepRow* const> rows, Masks masks,
                    absl::Span<RowResult* const> results, const Execution& execution) {
  if (ops::BackendOf(logits, execution) != ops::Backend::kCuda || !std::all_of(rows.begin(), rows.end(), IsPlain))
    return false;
  const ops::cuda::Kernels& kernels = *execution.cuda_kernels;
  const at::Tensor dense = logits.contiguous();
  at::Tensor tokens = at::empty({dense.size(0)}, dense.options().dtype(at::kInt));
  const bool greedy = std::all_of(rows.begin(), rows.end(), IsGreedy);
  const int launched =
      greedy ? LaunchGreedy(dense, masks, tokens, kernels) : LaunchSample(dense, rows, masks, tokens, kernels);
  if (!ops::IsLaunched(launched)) return false;
  tokens = tokens.to(at::kCPU);
  for (size_t i = 0; i < results.size(); ++i) {
    *results[i] = {.token = tokens.const_data_ptr<int32_t>()[i],
                   .verified_tokens = std::move(results[i]->verified_tokens)};
  }
  return true;
}

}  // namespace

StepSampler::StepSampler(Execution* execution) : execution_(execution), samplers_(execution->num_threads()) {}

void StepSampler::SampleOnDevice(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                                 StepResult* result) const {
  std::vector<RowResult> drafts(row_indices.size());
  std::vector<const StepRow*> rows;
  std::vector<RowResult*> results;
  std::vector<const uint32_t*> masks;
  for (size_t i = 0; i < row_indices.size(); ++i) {
    rows.push_back(&plan.rows[row_indices[i]]);
    const int64_t draft = DraftOf(static_cast<int64_t>(i), row_indices, *rows[i]);
    results.push_back(draft == kAfterDrafts ? &result->rows[row_indices[i]] : &drafts[i]);
    masks.push_back(MaskOf(*rows[i], draft));
  }
  if (!ChooseByKernel(logits, rows, masks, absl::MakeSpan(results), *execution_)) {
    SampleRowsReference(logits, rows, masks, absl::MakeSpan(results));
  }
  for (size_t i = 0; i < row_indices.size(); ++i) {
    const int64_t draft = DraftOf(static_cast<int64_t>(i), row_indices, *rows[i]);
    if (draft != kAfterDrafts) result->rows[row_indices[i]].verified_tokens[draft] = drafts[i].token;
  }
}

void StepSampler::SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                             StepResult* result) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(0) == static_cast<int64_t>(row_indices.size()) &&
                  logits.scalar_type() == at::kFloat,
              "SampleRows: logits must be float32 [", row_indices.size(), ", vocab]");
  result->rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) result->rows[i].verified_tokens.resize(plan.rows[i].num_drafts());
  if (ops::BackendOf(logits, *execution_) != ops::Backend::kCpu) {
    SampleOnDevice(logits, plan, row_indices, result);
    return;
  }
  const at::Tensor dense = logits.contiguous();
  const float* data = dense.const_data_ptr<float>();
  const size_t vocab = static_cast<size_t>(dense.size(1));
  const int64_t rows_per_task = std::max<int64_t>(1, kLogitsPerTask / std::max<int64_t>(1, dense.size(1)));
  ShareItems(execution_->threads, dense.size(0), rows_per_task, [&](int64_t begin, int64_t end, int thread) {
    Sampler& sampler = samplers_[thread];
    for (int64_t i = begin; i < end; ++i) {
      const StepRow& row = plan.rows[row_indices[i]];
      RowResult& out = result->rows[row_indices[i]];
      const int64_t draft = DraftOf(i, row_indices, row);
      if (draft == kAfterDrafts) {
        sampler.SampleRow({data + i * vocab, vocab}, row, &out);
      } else {
        RowResult one;
        sampler.SampleRow({data + i * vocab, vocab}, row, &one, draft);
        out.verified_tokens[draft] = one.token;
      }
    }
  });
}

}  // namespace berth
