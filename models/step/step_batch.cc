#include "models/step/step_batch.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace berth {
namespace {

// Where the copy of some rows begins in the staging buffer.
struct RaggedOffsets {
  int64_t token_ids, rows, lengths, tiles;
  std::vector<int64_t> blocks;  // by group

  RaggedOffsets(const RaggedRows& from, StagingBuffer* staging)
      : token_ids(staging->Add(from.token_ids)),
        rows(staging->Add(from.rows)),
        lengths(staging->Add(from.lengths)),
        tiles(staging->Add(from.tiles)) {
    for (const auto& of_group : from.blocks) blocks.push_back(staging->AddBlocks(of_group));
  }
};

// `count` numbers of a copy, which begins at `offset`.
at::Tensor Numbers(const at::Tensor& copy, int64_t offset, size_t count) {
  return copy.narrow(0, offset, static_cast<int64_t>(count * sizeof(int64_t))).view(at::kLong);
}

// The layer from which on no layer has a cache of its own; -1: the last one has.
int FirstLayerWithoutCache(const CachePlan& plan) {
  int first = static_cast<int>(plan.layers.size());
  const auto has_none = [](const LayerCacheSlot& slot) {
    return slot.kv_group < 0 && slot.state_group < 0 && slot.cross_group < 0;
  };
  while (first > 0 && has_none(plan.layers[first - 1])) --first;
  return first == static_cast<int>(plan.layers.size()) ? -1 : first;
}

template <typename T>
const T* At(const at::Tensor& copy, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(copy.const_data_ptr()) + offset);
}

void PointTo(const RaggedRows& rows, RaggedTables* tables) {
  tables->rows = rows.rows.data();
  tables->lengths = rows.lengths.data();
  tables->tiles = rows.tiles.data();
  for (size_t g = 0; g < rows.blocks.size(); ++g) tables->blocks[g] = rows.blocks[g].data();
}

void PointTo(const at::Tensor& copy, const RaggedOffsets& at, const RaggedRows& rows, RaggedTables* tables) {
  tables->token_ids = Numbers(copy, at.token_ids, rows.token_ids.size());
  tables->rows = At<ops::Row>(copy, at.rows);
  tables->lengths = At<int64_t>(copy, at.lengths);
  tables->tiles = At<int64_t>(copy, at.tiles);
  for (size_t g = 0; g < rows.blocks.size(); ++g) tables->blocks[g] = At<ops::Blocks>(copy, at.blocks[g]);
}

}  // namespace

StepBatch::StepBatch(CachePlan plan, std::byte* arena, at::Device device, Execution* execution, bool copy_tables)
    : plan_(std::move(plan)),
      arena_(reinterpret_cast<char*>(arena)),
      device_(device),
      execution_(execution),
      copy_tables_(copy_tables),
      units_(plan_.groups.size()),
      has_cross_(plan_.has_cross()),
      first_output_layer_(FirstLayerWithoutCache(plan_)) {
  for (RaggedRows* rows : {&decoder_, &encoder_}) rows->blocks.resize(plan_.groups.size());
  for (RaggedTables* tables : {&tables_.decoder, &tables_.encoder}) tables->blocks.resize(plan_.groups.size());
  tables_.units.resize(plan_.groups.size());
}

void StepBatch::Reserve(const StepSize& limits) {
  limits_ = limits;
  const int64_t groups = static_cast<int64_t>(plan_.groups.size());
  const int64_t with_tables = std::count_if(plan_.groups.begin(), plan_.groups.end(),
                                            [](const CacheGroup& group) { return !group.of_states(); });
  const int64_t blocks = (limits.sequence_tokens + plan_.block_tokens - 1) / plan_.block_tokens + 1;
  // A row's own numbers: its Row, its lengths and places, and what there is of each token.
  constexpr int64_t kNumbers = 16;
  const int64_t row_bytes = static_cast<int64_t>(sizeof(ops::Row) + kNumbers * sizeof(int64_t)) +
                            groups * static_cast<int64_t>(sizeof(ops::Blocks) + sizeof(int64_t));
  staging_.Reserve(limits.rows * row_bytes, limits.rows * with_tables, blocks);
}

void StepBatch::Clear() {
  for_graph_ = false;
  outputs_ = {};
  output_rows_.Clear();
  leading_rows_ = {};
  max_position_ = 0;
  decoder_.Clear();
  encoder_.Clear();
  host_sample_tokens_.clear();
  host_scored_tokens_.clear();
  host_pooled_tokens_.clear();
  sequence_lengths_.clear();
  cross_lengths_.clear();
  histories_.clear();
  sample_rows_.clear();
  parts_.rows.clear();
  parts_.units.clear();
  parts_.lengths.clear();
  parts_.tiles.clear();
  parts_.copies.clear();
  parts_.begins.clear();
  for (auto& units : units_) units.clear();
}

void StepBatch::FillRows(const StepPlan& step) {
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const int64_t first_scored = num_tokens() + step.rows[i].first_scored;
    FillRow(step.rows[i]);
    for (size_t s = 0; s < step.rows[i].scored.size(); ++s) {
      host_scored_tokens_.push_back(first_scored + static_cast<int64_t>(s));
    }
    for (int64_t back = step.rows[i].num_pooled; back > 0; --back) host_pooled_tokens_.push_back(num_tokens() - back);
    if (!step.rows[i].sample) continue;
    for (int64_t back = step.rows[i].num_drafts(); back >= 0; --back) {
      sample_rows_.push_back(static_cast<int>(i));
      host_sample_tokens_.push_back(num_tokens() - 1 - back);
    }
  }
}

void StepBatch::FillOutputs() {
  outputs_.first_layer = first_output_layer_;
  if (output_rows_.plan().empty()) return;
  if (output_batch_ == nullptr) {
    output_batch_ =
        std::make_unique<StepBatch>(plan_, reinterpret_cast<std::byte*>(arena_), device_, execution_, copy_tables_);
    output_batch_->only_reads_ = true;
    output_batch_->Reserve(limits_);
  }
  output_batch_->set_readers(scored_logits_, pooled_states_);
  output_batch_->Fill(output_rows_.plan());
  outputs_.batch = output_batch_.get();
}

void StepBatch::Fill(const StepPlan& step) {
  Clear();
  FillRows(step);
  if (has_cross_) FillEncoders(step);
  if (!only_reads_) FillParts(step);
  if (first_output_layer_ >= 0 && output_rows_.Choose(step)) FillOutputs();
  if (copy_tables_) {
    CopyTables();
  } else {
    PointTables();
  }
}

void StepBatch::Fill(const StepPlan& step, const GraphShape& shape) {
  TORCH_CHECK(copy_tables_ && !has_cross_, "no CUDA graph computes this model's steps");
  Clear();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    TORCH_CHECK(step.rows[i].num_tokens() == 1 && step.rows[i].sample, "a step of a CUDA graph decodes");
    FillRow(step.rows[i]);
    sample_rows_.push_back(static_cast<int>(i));
  }
  FillUpTo(shape);
  CopyTables();
  for_graph_ = true;
}

void StepBatch::FillUpTo(const GraphShape& shape) {
  TORCH_CHECK(num_rows() <= shape.rows && max_position_ < shape.keys && leading_rows_.keys.partials <= shape.splits(),
              "a step is larger than its CUDA graph");
  while (num_rows() < shape.rows) {
    decoder_.tiles.push_back(num_rows());
    decoder_.tiles.push_back(0);
    decoder_.rows.push_back({.first_token = num_tokens(), .num_tokens = 0, .start = 0});
    decoder_.lengths.push_back(0);
    decoder_.token_ids.push_back(0);
    decoder_.positions.push_back(0);
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (plan_.groups[g].kind == CacheKind::kRecurrent) {
        units_[g].push_back(0);
      } else if (plan_.groups[g].kind != CacheKind::kCheckpoint) {
        decoder_.blocks[g].push_back({});
      }
    }
  }
  for (int64_t row = 0; row < shape.rows; ++row) host_sample_tokens_.push_back(row);
  max_position_ = shape.keys - 1;
  leading_rows_ = {
      .rows = shape.rows,
      .longest = 1,
      .keys = {.most = ops::NumSplits(shape.keys), .partials = shape.splits()},
  };
}

void StepBatch::PointTables() {
  device_positions_ = ToDevice(decoder_.positions);
  sample_tokens_ = ToDevice(host_sample_tokens_);
  scored_tokens_ = ToDevice(host_scored_tokens_);
  pooled_tokens_ = ToDevice(host_pooled_tokens_);
  outputs_.tokens = ToDevice(output_rows_.tokens());
  PointTo(decoder_, &tables_.decoder);
  PointTo(encoder_, &tables_.encoder);
  tables_.decoder.token_ids = ToDevice(decoder_.token_ids);
  if (has_cross_) tables_.encoder.token_ids = ToDevice(encoder_.token_ids);
  tables_.cross_lengths = cross_lengths_.data();
  for (size_t g = 0; g < units_.size(); ++g) tables_.units[g] = units_[g].data();
  PointPhases({.rows = parts_.rows.data(),
               .units = parts_.units.data(),
               .lengths = parts_.lengths.data(),
               .tiles = parts_.tiles.data()});
}

void StepBatch::CopyTables() {
  staging_.Clear();
  const RaggedOffsets decoder(decoder_, &staging_), encoder(encoder_, &staging_);
  const int64_t cross_lengths = staging_.Add(cross_lengths_);
  const int64_t sample_tokens = staging_.Add(host_sample_tokens_);
  const int64_t scored_tokens = staging_.Add(host_scored_tokens_);
  const int64_t pooled_tokens = staging_.Add(host_pooled_tokens_);
  const int64_t output_tokens = staging_.Add(output_rows_.tokens());
  const int64_t positions = staging_.Add(decoder_.positions);
  std::vector<int64_t> units;  // by group: where they begin
  for (const auto& of_group : units_) units.push_back(staging_.Add(of_group));
  const int64_t part_rows = staging_.Add(parts_.rows);
  const int64_t part_units = staging_.Add(parts_.units);
  const int64_t part_lengths = staging_.Add(parts_.lengths);
  const int64_t part_tiles = staging_.Add(parts_.tiles);
  staging_.Copy(device_, &copy_);
  PointTo(copy_, decoder, decoder_, &tables_.decoder);
  PointTo(copy_, encoder, encoder_, &tables_.encoder);
  sample_tokens_ = Numbers(copy_, sample_tokens, host_sample_tokens_.size());
  scored_tokens_ = Numbers(copy_, scored_tokens, host_scored_tokens_.size());
  pooled_tokens_ = Numbers(copy_, pooled_tokens, host_pooled_tokens_.size());
  outputs_.tokens = Numbers(copy_, output_tokens, output_rows_.tokens().size());
  device_positions_ = Numbers(copy_, positions, decoder_.positions.size());
  tables_.cross_lengths = At<int64_t>(copy_, cross_lengths);
  for (size_t g = 0; g < units.size(); ++g) tables_.units[g] = At<int64_t>(copy_, units[g]);
  PointPhases({.rows = At<ops::Row>(copy_, part_rows),
               .units = At<int64_t>(copy_, part_units),
               .lengths = At<int64_t>(copy_, part_lengths),
               .tiles = At<int64_t>(copy_, part_tiles)});
}

void StepBatch::FillParts(const StepPlan& step) {
  const auto has_marks = [](const StepRow& row) { return !row.lease->marks().empty(); };
  if (plan_.state_group() < 0 || std::none_of(step.rows.begin(), step.rows.end(), has_marks)) return;
  for (int64_t number = 0; AddPhase(step, number); ++number) {
  }
}

bool StepBatch::AddPhase(const StepPlan& step, int64_t number) {
  const Parts::Begin begin = parts_.end();
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const absl::Span<const StateMark> marks = step.rows[r].lease->marks();
    const int64_t num_marks = static_cast<int64_t>(marks.size());
    if (number > num_marks) continue;
    const ops::Row& row = decoder_.rows[r];
    const int64_t unit = units_[plan_.state_group()][r];
    const int64_t start = number == 0 ? row.start : marks[number - 1].position;
    const int64_t end = number == num_marks ? row.start + row.num_tokens : marks[number].position;
    for (int64_t query = 0; query < end - start; query += ops::kQueryTile) {
      parts_.tiles.insert(parts_.tiles.end(), {parts_.end().row - begin.row, query});
    }
    parts_.rows.push_back(
        {.first_token = row.first_token + start - row.start, .num_tokens = end - start, .start = start});
    parts_.units.push_back(unit);
    parts_.lengths.push_back(decoder_.lengths[r]);
    if (number < num_marks) parts_.copies.push_back({.from = unit, .to = marks[number].offset});
  }
  if (parts_.end().row == begin.row) return false;
  parts_.begins.push_back(begin);
  return true;
}

void StepBatch::PointPhases(const StatePhase& tables) {
  phases_.clear();
  if (plan_.state_group() < 0) return;
  if (parts_.begins.empty()) {
    phases_.push_back({.rows = tables_.decoder.rows,
                       .units = tables_.units[plan_.state_group()],
                       .lengths = tables_.decoder.lengths,
                       .tiles = tables_.decoder.tiles,
                       .num_tiles = num_tiles(),
                       .num_rows = num_rows(),
                       .num_tokens = num_tokens(),
                       .longest_row = decoder_.longest_row,
                       .host_rows = decoder_.rows,
                       .host_units = units_[plan_.state_group()],
                       .host_lengths = decoder_.lengths});
    return;
  }
  for (size_t p = 0; p < parts_.begins.size(); ++p) {
    const Parts::Begin begin = parts_.begins[p];
    const Parts::Begin end = p + 1 == parts_.begins.size() ? parts_.end() : parts_.begins[p + 1];
    StatePhase phase = {.rows = tables.rows + begin.row,
                        .units = tables.units + begin.row,
                        .lengths = tables.lengths + begin.row,
                        .tiles = tables.tiles + 2 * begin.tile};
    phase.num_tiles = end.tile - begin.tile;
    phase.num_rows = end.row - begin.row;
    phase.host_rows = absl::MakeConstSpan(parts_.rows).subspan(begin.row, phase.num_rows);
    phase.host_units = absl::MakeConstSpan(parts_.units).subspan(begin.row, phase.num_rows);
    phase.host_lengths = absl::MakeConstSpan(parts_.lengths).subspan(begin.row, phase.num_rows);
    phase.copies = absl::MakeConstSpan(parts_.copies).subspan(begin.copy, end.copy - begin.copy);
    for (const ops::Row& row : phase.host_rows) {
      phase.num_tokens += row.num_tokens;
      phase.longest_row = std::max(phase.longest_row, row.num_tokens);
    }
    phases_.push_back(phase);
  }
}

void StepBatch::FillRow(const StepRow& row) {
  const int64_t count = row.num_tokens();
  const int64_t index = num_rows();
  decoder_.AddRow(row.start, row.prompt_length, {row.tokens, row.drafts});
  sequence_lengths_.push_back(row.sequence_length);
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    if (plan_.groups[g].kind == CacheKind::kRecurrent) {
      units_[g].push_back(row.lease->state_unit(static_cast<int>(g)));
    } else if (plan_.groups[g].kind != CacheKind::kCheckpoint) {
      const BlockTable table = row.lease->blocks(static_cast<int>(g));
      decoder_.blocks[g].push_back({.offsets = table.offsets.data(),
                                    .sink_blocks = table.sink_blocks,
                                    .expired_blocks = table.expired_blocks,
                                    .num_offsets = static_cast<int64_t>(table.offsets.size())});
    }
  }
  if (count <= ops::kQueryTile && leading_rows_.rows == index) {
    ++leading_rows_.rows;
    leading_rows_.longest = std::max(leading_rows_.longest, count);
    decoder_.rows.back().first_partial = leading_rows_.keys.Add(count, row.start + count);
  }
  max_position_ = std::max(max_position_, row.start + count - 1);
}

void StepBatch::FillEncoders(const StepPlan& step) {
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    cross_lengths_.push_back(row.lease->num_cross_tokens());
    if (static_cast<int64_t>(i) < leading_rows_.rows) {
      decoder_.rows[i].first_cross_partial = leading_rows_.cross_keys.Add(row.num_tokens(), cross_lengths_.back());
    }
    histories_.push_back(row.history);
    if (row.encoder_tokens.empty()) continue;
    encoder_.AddRow(/*start=*/0, static_cast<int64_t>(row.encoder_tokens.size()), {row.encoder_tokens});
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (plan_.groups[g].kind == CacheKind::kCross) encoder_.blocks[g].push_back(decoder_.blocks[g][i]);
    }
  }
}

at::Tensor StepBatch::ToDevice(const std::vector<int64_t>& values) const {
  // The host vector outlives the step, so the CPU tensor is a view of it.
  const at::Tensor host = at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                                        at::TensorOptions().dtype(at::kLong));
  // Pinned memory goes back to its pool when the transfer is done, not before.
  return device_.is_cpu() ? host : host.pin_memory().to(device_, /*non_blocking=*/true);
}

}  // namespace berth
