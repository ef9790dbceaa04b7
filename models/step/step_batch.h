// The step as layers and kernels see it: the plan's rows packed, with their places in the arena resolved to addresses.
//
// Built once a step by the runner; layers only read it. Its vectors keep their capacity. Engine thread only.
#ifndef BERTH_MODELS_STEP_STEP_BATCH_H_
#define BERTH_MODELS_STEP_STEP_BATCH_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <bit>
#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cache/spec.h"
#include "models/step.h"
#include "models/step/execution.h"
#include "models/step/row.h"
#include "models/step/staging_buffer.h"

namespace berth {

// The encoders that run in a step: all their tokens packed, positions from 0 in each row.
struct EncoderBatch {
  at::Tensor token_ids;                          // [tokens], int64, on the device
  std::vector<int64_t> host_token_ids;           // the same on the host
  std::vector<int64_t> positions;                // [tokens]
  std::vector<ops::Row> rows;                    // start is 0
  std::vector<int64_t> lengths;                  // by row
  std::vector<int64_t> tiles;                    // as StepBatch's
  std::vector<std::vector<ops::Blocks>> blocks;  // by group (cross ones), by row

  bool empty() const { return rows.empty(); }
};

// The encoders as kernels read them: the vectors of EncoderBatch, in memory of the device.
struct EncoderTables {
  const ops::Row* rows = nullptr;
  const int64_t* lengths = nullptr;
  const int64_t* tiles = nullptr;
  std::vector<const ops::Blocks*> blocks;  // by group
};

// The step as kernels read it: the vectors of StepBatch, in memory of its device.
struct StepTables {
  const ops::Row* rows = nullptr;
  const int64_t* tiles = nullptr;
  const int64_t* prompt_lengths = nullptr;
  const int64_t* cross_lengths = nullptr;
  std::vector<const ops::Blocks*> blocks;  // by group; their offsets are in the same memory
  std::vector<const int64_t*> units;       // by group
  EncoderTables encoder;
};

// The rows that a step begins with, of one tile each: those that decode, mostly.
struct LeadingRows {
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t keys = 0;        // that the longest of them sees, its own included
  int64_t cross_keys = 0;  // of the encoder's
};

// The least power of two that is not below `value`.
inline int64_t PowerOfTwoFrom(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

// A size that steps of one token a row are filled up to, so that a CUDA graph recorded of one computes them all.
struct GraphShape {
  int64_t rows;  // at least the step's
  int64_t keys;  // at least what its longest row sees

  friend bool operator==(const GraphShape&, const GraphShape&) = default;
  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

class StepBatch {
 public:
  // `arena` is the storage's base on `device`. `execution` must outlive the batch. `copy_tables`: the tables are a copy
  // on the device, of one transfer; else, on the CPU alone, the vectors themselves. Tests have copies on the CPU too.
  StepBatch(CachePlan plan, std::byte* arena, at::Device device, Execution* execution)
      : StepBatch(std::move(plan), arena, device, execution, /*copy_tables=*/!device.is_cpu()) {}
  StepBatch(CachePlan plan, std::byte* arena, at::Device device, Execution* execution, bool copy_tables);

  // REQUIRES: the plan has rows, and each row's lease has grown by its tokens.
  void Fill(const StepPlan& step);
  // Fills up to `shape`, by rows that have no tokens but a place in the packed ones, for a CUDA graph of steps of that
  // shape. Then what the host knows of the step, the second group below, is refused to whoever asks: a graph would keep
  // it for the steps after.
  // REQUIRES: the tables are a copy; each row has one token and samples; the model has no cross-attention.
  void Fill(const StepPlan& step, const GraphShape& shape);

  // The step's shape, and tensors on the device.
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_tiles() const { return static_cast<int64_t>(tiles_.size()) / 2; }
  int64_t longest_row() const { return longest_row_; }  // in tokens
  const LeadingRows& leading_rows() const { return leading_rows_; }
  int64_t max_position() const { return max_position_; }                    // or more
  const at::Tensor& token_ids() const { return token_ids_; }                // [tokens], int64
  const at::Tensor& device_positions() const { return device_positions_; }  // [tokens], int64, absolute
  // Plan rows that sample, and the packed index of each one's last token; a row with drafts once for each of them, in
  // order, and once more. A graph's logits are of all its rows, whoever samples.
  const std::vector<int>& sample_rows() const { return sample_rows_; }
  const at::Tensor& sample_tokens() const { return sample_tokens_; }  // [sample_rows], or the shape's rows; int64
  const StepTables& tables() const { return tables_; }

  // What the host knows of the step.
  const std::vector<int64_t>& positions() const { return OnHost(positions_); }  // [tokens], absolute
  const std::vector<ops::Row>& rows() const { return OnHost(rows_); }
  // By row, in tokens: the prompt's length, and the sequence's so far with what is not computed yet.
  const std::vector<int64_t>& prompt_lengths() const { return OnHost(prompt_lengths_); }
  const std::vector<int64_t>& sequence_lengths() const { return OnHost(sequence_lengths_); }
  const std::vector<ops::Blocks>& blocks(int group) const { return OnHost(blocks_[group]); }  // by row
  const std::vector<int64_t>& units(int group) const { return OnHost(units_[group]); }        // by row
  const std::vector<int64_t>& tiles() const { return OnHost(tiles_); }  // [tiles, 2]: row, first query
  // Models with cross-attention only: the encoders of this step; by row, what its encoder has read and the sequence so
  // far, prompt first, without drafts.
  const EncoderBatch& encoder() const { return OnHost(encoder_); }
  const std::vector<int64_t>& cross_lengths() const { return OnHost(cross_lengths_); }
  const std::vector<absl::Span<const int32_t>>& histories() const { return OnHost(histories_); }
  const std::vector<int64_t>& host_token_ids() const { return OnHost(host_token_ids_); }  // [tokens]

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
  void FillRow(const StepRow& row);
  void FillUpTo(const GraphShape& shape);
  void FillEncoders(const StepPlan& step);
  void FillEncoderRow(const StepRow& row, size_t index);
  void PointTables();
  void CopyTables();

  CachePlan plan_;
  char* arena_;
  at::Device device_;
  Execution* execution_;
  bool copy_tables_;
  StepTables tables_;
  StagingBuffer staging_;  // on their way to the copy
  at::Tensor copy_;        // bytes, on the device; kept from step to step
  bool for_graph_ = false;
  int64_t longest_row_ = 0;
  LeadingRows leading_rows_;
  int64_t num_tokens_ = 0;
  int64_t max_position_ = 0;
  at::Tensor token_ids_;
  at::Tensor sample_tokens_;
  at::Tensor device_positions_;
  std::vector<int64_t> host_token_ids_;
  std::vector<int64_t> host_sample_tokens_;
  std::vector<int64_t> positions_;
  std::vector<ops::Row> rows_;
  std::vector<int64_t> prompt_lengths_;
  std::vector<int64_t> sequence_lengths_;
  std::vector<std::vector<ops::Blocks>> blocks_;
  std::vector<std::vector<int64_t>> units_;
  std::vector<int64_t> tiles_;
  std::vector<int> sample_rows_;
  bool has_cross_;
  EncoderBatch encoder_;
  std::vector<int64_t> cross_lengths_;
  std::vector<absl::Span<const int32_t>> histories_;
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_STEP_BATCH_H_
