#include "models/warm_up.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/cache.h"
#include "models/graph_shape.h"
#include "models/step.h"

namespace berth {
namespace {

// Steps of sequences whose tokens are all 0. What they give is of no interest, so a decode step may read cache that
// nothing wrote.
class DrySteps {
 public:
  DrySteps(const CachePlan& plan, ArenaStorage* storage, ModelRunner* runner, const WarmUpOptions& options)
      : plan_(plan), storage_(storage), runner_(runner), options_(options) {
    greedy_.temperature = 0;
    // What takes the most memory.
    drawn_.top_p = 0.9f;
    drawn_.repetition_penalty = 1.1f;
    drawn_.num_logprobs = 5;
  }

  absl::StatusOr<WarmUpCounts> Run() {
    absl::StatusOr<std::unique_ptr<Cache>> cache = Cache::Create(plan_, storage_, {});
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    storage_->Fence();  // takes the memory that copies beside steps need
    absl::Status status = Prefill();
    if (status.ok()) status = Decode();
    if (status.ok()) status = CheckDrafts();
    if (status.ok() && options_.graphs) status = RecordGraphs();
    rows_.clear();
    if (!status.ok()) return status;
    return counts_;
  }

 private:
  struct Row {
    SequenceLease lease;
    int64_t start;
    int64_t num_tokens;
    int64_t num_encoder_tokens;
    int64_t num_drafts = 0;  // after the tokens
  };

  // Adds a row of `num_tokens` tokens at `start`. False: the arena holds no more.
  bool Add(int64_t start, int64_t num_tokens, int64_t num_encoder_tokens = 0) {
    Row row = {cache_->NewLease(num_encoder_tokens), start, num_tokens, num_encoder_tokens};
    if (!row.lease.Grow(start + num_tokens).ok()) return false;
    rows_.push_back(std::move(row));
    return true;
  }

  // Runs the rows. Every second one draws its token, unless there are drafts.
  absl::Status RunRows(const char* what) {
    if (rows_.empty()) return absl::OkStatus();
    StepPlan step;
    for (const Row& row : rows_) {
      const int64_t most = std::max({row.start + row.num_tokens, row.num_encoder_tokens, row.num_drafts});
      tokens_.resize(std::max<size_t>(tokens_.size(), most));
    }
    const bool all_greedy = std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.num_drafts > 0; });
    const absl::Span<const int32_t> tokens = tokens_;
    for (const Row& row : rows_) {
      const bool decodes = row.num_tokens == 1;
      step.rows.push_back({.lease = &row.lease,
                           .tokens = tokens.first(row.num_tokens),
                           .start = row.start,
                           .sample = true,
                           .drafts = tokens.first(row.num_drafts),
                           .sampling = all_greedy || step.rows.size() % 2 == 0 ? &greedy_ : &drawn_,
                           .history = tokens.first(row.start + row.num_tokens),
                           .prompt_length = row.start + (decodes ? 0 : row.num_tokens),
                           .sequence_length = row.start + row.num_tokens,
                           .encoder_tokens = tokens.first(row.num_encoder_tokens)});
      step.num_tokens += row.num_tokens + row.num_drafts + row.num_encoder_tokens;
      if (decodes && row.num_drafts == 0) ++step.num_decode_rows;
    }
    absl::Status status = runner_->Run(step, &result_);
    if (status.ok()) status = storage_->status();
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("before serving, ", what, " of ", step.rows.size(), " rows and ", step.num_tokens,
                                     " tokens failed: ", status.message(),
                                     "; where memory is short, lower --arena, --max_step_tokens, --max_running or "
                                     "--max_sequence_tokens"));
  }

  // One step of as many tokens as a step may have, in rows of a prefill chunk.
  absl::Status Prefill() {
    rows_.clear();
    const int64_t longest = std::min(options_.prefill_chunk_tokens, options_.max_sequence_tokens);
    int64_t left = options_.max_step_tokens;
    if (plan_.has_cross()) {
      // An encoder reads its input in one step.
      for (int64_t length = std::min(left - 1, options_.max_sequence_tokens); length > 0 && rows_.empty(); length /= 2)
        Add(0, 1, length);
      left = 0;
    }
    while (left > 0 && static_cast<int64_t>(rows_.size()) < options_.max_running && Add(0, std::min(left, longest))) {
      left -= rows_.back().num_tokens;
    }
    for (const Row& row : rows_) counts_.prefill_tokens += row.num_tokens + row.num_encoder_tokens;
    return RunRows("a prefill step");
  }

  absl::Status Decode() {
    FillDecode(options_.max_running);
    counts_.decode_rows = static_cast<int64_t>(rows_.size());
    return RunRows("a decode step");
  }

  // Rows of one token each; fewer where the arena holds no more.
  void FillDecode(int64_t num_rows) {
    rows_.clear();
    while (static_cast<int64_t>(rows_.size()) < num_rows && Add(0, 1, plan_.has_cross() ? 1 : 0)) {
    }
  }

  // The rows of Decode again, with as many drafts as a step may have.
  absl::Status CheckDrafts() {
    int64_t left = std::min(kMaxStepDrafts, options_.max_step_tokens - static_cast<int64_t>(rows_.size()));
    for (size_t i = 0; i < rows_.size(); ++i) {
      Row& row = rows_[i];
      row.start = 1;
      row.num_encoder_tokens = 0;
      if (!row.lease.Grow(2).ok()) {  // the arena holds no more rows
        rows_.erase(rows_.begin() + static_cast<int64_t>(i), rows_.end());
        break;
      }
      const int64_t count = std::min({options_.max_drafts, left, options_.max_sequence_tokens - 2});
      if (count <= 0 || !row.lease.Grow(2 + count).ok()) continue;
      row.num_drafts = count;
      left -= count;
      counts_.draft_tokens += count;
    }
    return counts_.draft_tokens == 0 ? absl::OkStatus() : RunRows("a step with drafts");
  }

  absl::Status RecordGraphs() {
    for (int64_t rows : GraphRowsUpTo(options_.max_running)) {
      const int64_t wanted = std::min(rows, options_.max_running);
      FillDecode(wanted);
      if (static_cast<int64_t>(rows_.size()) < wanted) continue;  // no later step will have these rows either
      const int64_t launches = runner_->num_graph_launches();
      for (int time = 0; time < 2; ++time) {
        if (absl::Status s = RunRows("a decode step"); !s.ok()) return s;
      }
      if (runner_->num_graph_launches() == launches) break;  // it has none, or was refused
      ++counts_.graphs;
    }
    return absl::OkStatus();
  }

  const CachePlan& plan_;
  ArenaStorage* const storage_;
  ModelRunner* const runner_;
  const WarmUpOptions& options_;
  SamplingParams greedy_, drawn_;
  std::unique_ptr<Cache> cache_;
  std::vector<Row> rows_;
  std::vector<int32_t> tokens_;
  StepResult result_;
  WarmUpCounts counts_;
};

}  // namespace

absl::StatusOr<WarmUpCounts> WarmUp(const CachePlan& plan, ArenaStorage* storage, ModelRunner* runner,
                                    const WarmUpOptions& options) {
  return DrySteps(plan, storage, runner, options).Run();
}

}  // namespace berth
