// The step as layers and kernels see it: the plan's rows packed, with their places in the arena resolved to addresses.
//
// Built once a step by the runner; layers only read it. Its vectors keep their capacity. Engine thread only.
#ifndef BERTH_MODELS_STEP_STEP_BATCH_H_
#define BERTH_MODELS_STEP_STEP_BATCH_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cache/spec.h"
#include "models/graph_shape.h"
#include "models/model_runner.h"
#include "models/step.h"
#include "models/step/execution.h"
#include "models/step/output_rows.h"
#include "models/step/row.h"
#include "models/step/staging_buffer.h"
#include "models/step/step_tables.h"

namespace berth {

// Takes the logits of the step's scored tokens (StepRow::scored), some at a time, so that those of all tokens are never
// in memory together.
class ScoredLogits {
 public:
  // logits: [tokens, vocab], as Model::Forward returns them. They belong to the scored tokens from number `first` on,
  // in the order of the rows.
  virtual void Take(const at::Tensor& logits, int64_t first) = 0;

 protected:
  ~ScoredLogits() = default;
};

// Takes the hidden states of the step's pooled tokens (StepRow::num_pooled), some at a time.
class PooledStates {
 public:
  // states: [tokens, hidden], after the final norm, in the type of the model's activations. They belong to the pooled
  // tokens from number `first` on, in the order of the rows.
  virtual void Take(const at::Tensor& states, int64_t first) = 0;

 protected:
  ~PooledStates() = default;
};

class StepBatch;

// What is computed after the last layer that writes to the cache: only the tokens whose outputs are read (OutputRows).
struct StepOutputs {
  int first_layer = -1;              // that computes these tokens alone; -1: all layers compute all tokens
  const StepBatch* batch = nullptr;  // these tokens as a step, whose layers only read the cache; null: there are none
  at::Tensor tokens;                 // [tokens of `batch`], int64: their packed indices in the whole step
};

class StepBatch {
 public:
  // `arena` is the storage's base on `device`. `execution` must outlive the batch. `copy_tables`: the tables are a copy
  // on the device, of one transfer; else, on the CPU alone, the vectors themselves. Tests have copies on the CPU too.
  StepBatch(CachePlan plan, std::byte* arena, at::Device device, Execution* execution)
      : StepBatch(std::move(plan), arena, device, execution, /*copy_tables=*/!device.is_cpu()) {}
  StepBatch(CachePlan plan, std::byte* arena, at::Device device, Execution* execution, bool copy_tables);

  // Makes room for the rows and block tables of the largest step that only decodes. So their copy stays at its address,
  // and no graph has to be recorded anew because it grows.
  void Reserve(const StepSize& limits);

  // REQUIRES: the plan has rows, and each row's lease has grown by its tokens.
  void Fill(const StepPlan& step);
  // Fills up to `shape`, by rows that have no tokens but a place in the packed ones, for a CUDA graph of steps of that
  // shape. Then what the host knows of the step, the second group below, is refused to whoever asks: a graph would keep
  // it for the steps after.
  // REQUIRES: the tables are a copy; each row has one token and samples; the model has no cross-attention.
  void Fill(const StepPlan& step, const GraphShape& shape);

  // The step's shape, and tensors on the device.
  int64_t num_tokens() const { return decoder_.num_tokens(); }
  int64_t num_rows() const { return decoder_.num_rows(); }
  int64_t num_tiles() const { return decoder_.num_tiles(); }
  int64_t longest_row() const { return decoder_.longest_row; }  // in tokens
  const LeadingRows& leading_rows() const { return leading_rows_; }
  int64_t max_position() const { return max_position_; }                     // or more
  const at::Tensor& token_ids() const { return tables_.decoder.token_ids; }  // [tokens], int64
  const at::Tensor& device_positions() const { return device_positions_; }   // [tokens], int64, absolute
  // Plan rows that sample, and the packed index of each one's last token; a row with drafts once for each of them, in
  // order, and once more. A graph's logits are of all its rows, whoever samples.
  const std::vector<int>& sample_rows() const { return sample_rows_; }
  const at::Tensor& sample_tokens() const { return sample_tokens_; }  // [sample_rows], or the shape's rows; int64
  // The packed index of each token after which a scored one comes; and what takes their logits, null: none.
  const at::Tensor& scored_tokens() const { return scored_tokens_; }  // [scored tokens], int64
  ScoredLogits* scored_logits() const { return scored_logits_; }
  // The packed index of each token whose hidden state is pooled; and what takes these states, null: none.
  const at::Tensor& pooled_tokens() const { return pooled_tokens_; }  // [pooled tokens], int64
  PooledStates* pooled_states() const { return pooled_states_; }
  void set_readers(ScoredLogits* scored_logits, PooledStates* pooled_states) {
    scored_logits_ = scored_logits;
    pooled_states_ = pooled_states;
  }
  // A model whose last layers need no cache of their own looks here before each layer.
  const StepOutputs& outputs() const { return outputs_; }
  const StepTables& tables() const { return tables_; }
  // In the order in which recurrences run them. The host's part belongs to the second group.
  const std::vector<StatePhase>& phases() const { return phases_; }

  // What the host knows of the step.
  const RaggedRows& decoder() const { return OnHost(decoder_); }
  // By row: the sequence's tokens so far, with those that are not computed yet; and its unit of a group of states.
  const std::vector<int64_t>& sequence_lengths() const { return OnHost(sequence_lengths_); }
  const std::vector<int64_t>& units(int group) const { return OnHost(units_[group]); }
  const std::vector<StatePhase>& host_phases() const { return OnHost(phases_); }
  // Models with cross-attention only: the encoders of this step; by row, what its encoder has read and the sequence so
  // far, prompt first, without drafts.
  const RaggedRows& encoder() const { return OnHost(encoder_); }
  const std::vector<int64_t>& cross_lengths() const { return OnHost(cross_lengths_); }
  const std::vector<absl::Span<const int32_t>>& histories() const { return OnHost(histories_); }

  // Where the tables' copy lies: while that is the same, so are the addresses of every step of a shape.
  const void* copy_address() const { return copy_.defined() ? copy_.const_data_ptr() : nullptr; }
  bool has_cross() const { return has_cross_; }
  // A copy on the device, which the host does not wait for; on the CPU a view, which `values` must outlive.
  at::Tensor ToDevice(const std::vector<int64_t>& values) const;

  const LayerCacheSlot& slot(int layer) const { return plan_.layers[layer]; }
  const CacheGroup& group(int group) const { return plan_.groups[group]; }
  int64_t block_tokens() const { return plan_.block_tokens; }
  char* arena() const { return arena_; }
  const at::Device& device() const { return device_; }
  Execution& execution() const { return *execution_; }  // what the step runs on

 private:
  template <typename T>
  const T& OnHost(const T& value) const {
    TORCH_CHECK(!for_graph_, "the step depends on what the host knows of it, which no CUDA graph can");
    return value;
  }
  void Clear();
  void FillRows(const StepPlan& step);
  void FillRow(const StepRow& row);
  void FillUpTo(const GraphShape& shape);
  void FillEncoders(const StepPlan& step);
  // Fills the step of the tokens that output_rows_ has chosen.
  void FillOutputs();
  // Divides the rows at their marks.
  void FillParts(const StepPlan& step);
  // Adds the part of each row that is its number `number`. Returns false if none has one.
  bool AddPhase(const StepPlan& step, int64_t number);
  // Sets phases_. The argument has the tables of all parts.
  void PointPhases(const StatePhase& tables);
  void PointTables();
  void CopyTables();

  CachePlan plan_;
  char* arena_;
  at::Device device_;
  Execution* execution_;
  bool copy_tables_;
  StepTables tables_;
  StagingBuffer staging_;  // on their way to the copy
  StepSize limits_;        // of Reserve
  at::Tensor copy_;        // bytes, on the device; kept from step to step
  bool for_graph_ = false;
  LeadingRows leading_rows_;
  int64_t max_position_ = 0;
  at::Tensor sample_tokens_;
  at::Tensor device_positions_;
  std::vector<int64_t> host_sample_tokens_;
  at::Tensor scored_tokens_;
  std::vector<int64_t> host_scored_tokens_;
  ScoredLogits* scored_logits_ = nullptr;
  at::Tensor pooled_tokens_;
  std::vector<int64_t> host_pooled_tokens_;
  PooledStates* pooled_states_ = nullptr;
  RaggedRows decoder_, encoder_;
  std::vector<int64_t> sequence_lengths_;
  std::vector<std::vector<int64_t>> units_;
  // With marks: the parts, phase by phase, and where each phase begins.
  struct Parts {
    std::vector<ops::Row> rows;
    std::vector<int64_t> units;
    std::vector<int64_t> lengths;
    std::vector<int64_t> tiles;
    std::vector<StateCopy> copies;
    struct Begin {
      int64_t row, tile, copy;
    };
    std::vector<Begin> begins;

    // Where what is added next begins.
    Begin end() const {
      return {static_cast<int64_t>(rows.size()), static_cast<int64_t>(tiles.size()) / 2,
              static_cast<int64_t>(copies.size())};
    }
  };
  Parts parts_;
  std::vector<StatePhase> phases_;
  std::vector<int> sample_rows_;
  bool has_cross_;
  int first_output_layer_;  // from here on no layer writes to the cache; -1: the last one does
  OutputRows output_rows_;
  StepOutputs outputs_;
  std::unique_ptr<StepBatch> output_batch_;  // made by the first step that needs it
  bool only_reads_ = false;                  // this is another's output_batch_: no recurrence runs it
  std::vector<int64_t> cross_lengths_;
  std::vector<absl::Span<const int32_t>> histories_;
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_STEP_BATCH_H_
