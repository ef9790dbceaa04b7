// The step as layers and kernels see it: the plan's rows packed, with their places in the arena resolved to addresses.
//
// Built once a step by the runner; layers only read it. Its vectors keep their capacity. Engine thread only.
#ifndef BERTH_MODELS_KERNELS_STEP_BATCH_H_
#define BERTH_MODELS_KERNELS_STEP_BATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cache/spec.h"
#include "models/kernels/cpu/kernels.h"
#include "models/kernels/step_image.h"
#include "models/step.h"

namespace berth {

// The encoders that run in a step: all their tokens packed, positions from 0 in each row.
struct EncoderBatch {
  at::Tensor token_ids;                          // [tokens], int64, on the device
  std::vector<int64_t> host_token_ids;           // the same on the host
  std::vector<int64_t> positions;                // [tokens]
  std::vector<cpu::Row> rows;                    // start is 0
  std::vector<int64_t> lengths;                  // by row
  std::vector<int64_t> tiles;                    // as StepBatch's
  std::vector<std::vector<cpu::Blocks>> blocks;  // by group (cross ones), by row

  bool empty() const { return rows.empty(); }
};

// The encoders as kernels read them: the vectors of EncoderBatch, in memory of the device.
struct EncoderTables {
  const cpu::Row* rows = nullptr;
  const int64_t* lengths = nullptr;
  const int64_t* tiles = nullptr;
  std::vector<const cpu::Blocks*> blocks;  // by group
};

// The step as kernels read it: the vectors of StepBatch, in memory of its device.
struct StepTables {
  const cpu::Row* rows = nullptr;
  const int64_t* tiles = nullptr;
  const int64_t* prompt_lengths = nullptr;
  const int64_t* cross_lengths = nullptr;
  std::vector<const cpu::Blocks*> blocks;  // by group; their offsets are in the same memory
  std::vector<const int64_t*> units;       // by group
  EncoderTables encoder;
};

class StepBatch {
 public:
  // `arena` is the storage's base on `device`. `copy_tables`: the tables are a copy on the device, of one transfer;
  // else, on the CPU alone, the vectors themselves. Tests have copies on the CPU too.
  StepBatch(CachePlan plan, std::byte* arena, at::Device device)
      : StepBatch(std::move(plan), arena, device, /*copy_tables=*/!device.is_cpu()) {}
  StepBatch(CachePlan plan, std::byte* arena, at::Device device, bool copy_tables);

  // Whether recurrences sum token by token in prefill too, so that no bit depends on the chunks that a prompt is cut
  // into. Else Mamba-2 and the gated delta net go in matrix products, which is faster and sums by the chunk.
  void set_scans_in_order(bool in_order) { scans_in_order_ = in_order; }
  bool scans_in_order() const { return scans_in_order_; }
  // From how many tokens of a row on they go in matrix products: from `tokens` on, or never.
  int64_t chunked_from(int64_t tokens) const { return scans_in_order_ ? std::numeric_limits<int64_t>::max() : tokens; }

  // REQUIRES: the plan has rows, and each row's lease has grown by its tokens.
  void Fill(const StepPlan& step);

  int64_t num_tokens() const { return num_tokens_; }
  const at::Tensor& token_ids() const { return token_ids_; }            // [tokens], int64, on the device
  const std::vector<int64_t>& positions() const { return positions_; }  // [tokens], absolute
  int64_t max_position() const { return max_position_; }
  const std::vector<cpu::Row>& rows() const { return rows_; }
  // By row, in tokens: the prompt's length, and the sequence's so far with what is not computed yet.
  const std::vector<int64_t>& prompt_lengths() const { return prompt_lengths_; }
  const std::vector<int64_t>& sequence_lengths() const { return sequence_lengths_; }
  const std::vector<cpu::Blocks>& blocks(int group) const { return blocks_[group]; }  // by row
  const std::vector<int64_t>& units(int group) const { return units_[group]; }        // by row
  const std::vector<int64_t>& tiles() const { return tiles_; }  // [tiles, 2]: row, first query; longest rows first
  // Models with cross-attention only: the encoders of this step; by row, what its encoder has read and the sequence so
  // far, prompt first.
  const EncoderBatch& encoder() const { return encoder_; }
  const std::vector<int64_t>& cross_lengths() const { return cross_lengths_; }
  const std::vector<absl::Span<const int32_t>>& histories() const { return histories_; }
  const std::vector<int64_t>& host_token_ids() const { return host_token_ids_; }  // [tokens]
  // Plan rows that sample, and the packed index of each one's last token; a row with drafts once for each of them, in
  // order, and once more.
  const std::vector<int>& sample_rows() const { return sample_rows_; }
  const at::Tensor& sample_tokens() const { return sample_tokens_; }  // [sample_rows], int64, on the device

  const StepTables& tables() const { return tables_; }
  int64_t longest_row() const { return longest_row_; }  // in tokens
  // A copy on the device, which the host does not wait for; on the CPU a view, which `values` must outlive.
  at::Tensor ToDevice(const std::vector<int64_t>& values) const;

  const LayerCacheSlot& slot(int layer) const { return plan_.layers[layer]; }
  const CacheGroup& group(int group) const { return plan_.groups[group]; }
  int64_t block_tokens() const { return plan_.block_tokens; }
  char* arena() const { return arena_; }
  const at::Device& device() const { return device_; }

 private:
  void FillRow(const StepRow& row);
  void FillEncoders(const StepPlan& step);
  void FillEncoderRow(const StepRow& row, size_t index);
  void PointTables();
  void CopyTables();

  CachePlan plan_;
  char* arena_;
  at::Device device_;
  bool copy_tables_;
  bool scans_in_order_ = false;
  StepTables tables_;
  StepImage image_;  // where they are copied
  at::Tensor copy_;  // bytes: of the image
  int64_t longest_row_ = 0;
  int64_t num_tokens_ = 0;
  int64_t max_position_ = 0;
  at::Tensor token_ids_;
  at::Tensor sample_tokens_;
  std::vector<int64_t> host_token_ids_;
  std::vector<int64_t> host_sample_tokens_;
  std::vector<int64_t> positions_;
  std::vector<cpu::Row> rows_;
  std::vector<int64_t> prompt_lengths_;
  std::vector<int64_t> sequence_lengths_;
  std::vector<std::vector<cpu::Blocks>> blocks_;
  std::vector<std::vector<int64_t>> units_;
  std::vector<int64_t> tiles_;
  std::vector<int> sample_rows_;
  bool has_cross_;
  EncoderBatch encoder_;
  std::vector<int64_t> cross_lengths_;
  std::vector<absl::Span<const int32_t>> histories_;
};

}  // namespace berth

#endif  // BERTH_MODELS_KERNELS_STEP_BATCH_H_
