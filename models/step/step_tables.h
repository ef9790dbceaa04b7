// The tables of a step: its rows packed, as the host and as kernels read them. StepBatch fills them. Engine thread
// only.
#ifndef BERTH_MODELS_STEP_STEP_TABLES_H_
#define BERTH_MODELS_STEP_STEP_TABLES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/types/span.h"
#include "models/step/row.h"

namespace berth {

// The tokens of several rows, packed: those of the step, or those of the encoders that run in it.
struct RaggedRows {
  std::vector<int64_t> token_ids;  // [tokens]
  std::vector<int64_t> positions;  // [tokens], absolute
  std::vector<ops::Row> rows;
  std::vector<int64_t> lengths;                  // by row, in tokens: of the prompt; of an encoder's row
  std::vector<int64_t> tiles;                    // [tiles, 2]: row, first query
  std::vector<std::vector<ops::Blocks>> blocks;  // by group, by row; of encoders the cross groups only
  int64_t longest_row = 0;                       // in tokens

  bool empty() const { return rows.empty(); }
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_rows() const { return static_cast<int64_t>(rows.size()); }
  int64_t num_tiles() const { return static_cast<int64_t>(tiles.size()) / 2; }
  // Its vectors keep their capacity.
  void Clear();
  // One more row, whose tokens are the parts one after the other. Its blocks are the caller's to add.
  void AddRow(int64_t start, int64_t length, std::initializer_list<absl::Span<const int32_t>> parts);
};

// These tables as kernels read them: in memory of their device.
struct RaggedTables {
  at::Tensor token_ids;  // [tokens], int64
  const ops::Row* rows = nullptr;
  const int64_t* lengths = nullptr;
  const int64_t* tiles = nullptr;
  std::vector<const ops::Blocks*> blocks;  // by group; their offsets are in the same memory
};

// A copy of a row's states, from its unit to a mark's (SequenceLease::marks).
struct StateCopy {
  int64_t from = 0;  // bytes in the arena where the units begin
  int64_t to = 0;
};

// What recurrences run at once: parts of rows, each of another sequence. A step with marks has several phases, because
// a row's states are copied where it has a mark:
//
//   row 0   |---- phase 0 ----| mark |- phase 1 -| mark |------ phase 2 ------|
//   row 1   |------------ phase 0 ------------|
//   row 2   |-- phase 0 --| mark |-------------- phase 1 --------------|
//
// Without marks, there is one phase, of the step's rows.
struct StatePhase {
  // For kernels: in memory of their device, by part.
  const ops::Row* rows = nullptr;
  const int64_t* units = nullptr;
  const int64_t* lengths = nullptr;  // of the prompts
  const int64_t* tiles = nullptr;    // [tiles, 2]: row of the phase, first query
  int64_t num_tiles = 0;
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t longest_row = 0;  // in tokens
  // What the host knows of them. The copies come after the phase.
  absl::Span<const ops::Row> host_rows;
  absl::Span<const int64_t> host_units;
  absl::Span<const int64_t> host_lengths;
  absl::Span<const StateCopy> copies;
};

// The step as kernels read it: the vectors of StepBatch, in memory of its device.
struct StepTables {
  RaggedTables decoder, encoder;
  const int64_t* cross_lengths = nullptr;
  std::vector<const int64_t*> units;  // by group
};

// The parts of kSplitTokens positions that some rows' keys make.
struct KeySplits {
  int64_t most = 0;      // of one row
  int64_t partials = 0;  // summed over the rows' tokens

  // Adds a row of `tokens` tokens that see `keys` keys. Returns the row's first partial.
  int64_t Add(int64_t tokens, int64_t keys);
};

// The rows that a step begins with, of one tile each: those that decode, mostly.
struct LeadingRows {
  int64_t rows = 0;
  int64_t longest = 0;   // in tokens
  KeySplits keys;        // that they see, their own included
  KeySplits cross_keys;  // of the encoder's
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_STEP_TABLES_H_
