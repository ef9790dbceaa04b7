// What FlashInfer's attention kernel is told of a step, and the kernel that writes it. Part of flashinfer.cu.
//
// An item is a block of threads' work for one KV head: a tile of a row's lanes, over all keys that they see or over one
// part of them. A lane is one head of one query: lane l of a row is query l / group, and head l % group of the `group`
// heads that share a KV head.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_FLASHINFER_PLAN_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_FLASHINFER_PLAN_CUH_

#include "models/kernels/cuda/device.cuh"
#include "models/ops/paged_attention/paged_attention_args.h"

namespace berth::ops::cuda {

// The items of a launch.
struct FlashInferShape {
  int64_t group;
  int64_t tile_lanes;             // FlashInfer's CTA_TILE_Q
  int64_t first_tile, num_tiles;  // of the step's tiles, which are kQueryTile queries each
  int64_t parts;                  // of each row's keys. Above 1, tile t is row t, and has packed token t or none.
  int64_t num_rows;               // of the step

  bool is_divided() const { return parts > 1; }
  int64_t items_of_tile() const { return is_divided() ? parts : CeilDiv(kQueryTile * group, tile_lanes); }
  int64_t items() const { return num_tiles * items_of_tile(); }
};

// Arrays in the device's memory. FlashInfer has one type for all indices.
struct FlashInferPlan {
  int64_t* rows;           // [items]
  int64_t* tiles;          // [items]: which tile of the row's lanes
  int64_t* parts;          // [items]: which part of its keys
  bool* is_item;           // [items]: false: the row has no such lanes, and nothing is done
  int64_t* first_tokens;   // [rows]: where a row begins in the packed tensors
  int64_t* first_results;  // [rows + 1]: where its results begin; if keys are divided, it has one for each part
  int64_t* part_keys;      // [1]: the keys of a part; if they are not divided, more than there are
};

inline constexpr int kPlanThreads = 256;

// One block of kPlanThreads threads. The parts are those of the row that sees most: a row's last ones may be empty.
__global__ void __launch_bounds__(kPlanThreads)
    FlashInferPlanKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ FlashInferShape shape,
                         const __grid_constant__ FlashInferPlan plan, int items_of_tile) {
  const bool is_divided = shape.parts > 1;
  const int first = static_cast<int>(threadIdx.x);
  for (int i = first; i < shape.num_tiles * items_of_tile; i += kPlanThreads) {
    const int64_t* tile = a.tiles + 2 * (shape.first_tile + i / items_of_tile);
    const int64_t begin = tile[1] * shape.group;
    const int64_t queries = a.rows[tile[0]].num_tokens - tile[1];
    const int64_t end = begin + (queries < kQueryTile ? queries : kQueryTile) * shape.group;
    const int at = i % items_of_tile;
    // FlashInfer's tiles that begin within these lanes.
    const int64_t of_row = is_divided ? 0 : (begin + shape.tile_lanes - 1) / shape.tile_lanes + at;
    plan.rows[i] = tile[0];
    plan.tiles[i] = of_row;
    plan.parts[i] = is_divided ? at : 0;
    plan.is_item[i] = of_row * shape.tile_lanes < end;
  }
  for (int r = first; r <= shape.num_rows; r += kPlanThreads) {
    const int64_t token = r < shape.num_rows ? a.rows[r].first_token : 0;
    if (r < shape.num_rows) plan.first_tokens[r] = token;
    plan.first_results[r] = is_divided ? r * shape.parts : token;
  }
  if (first >= kWarp) return;
  float most = 1;  // whole numbers below 2^24
  for (int r = first; is_divided && r < shape.num_tiles; r += kWarp) {
    const int64_t keys = a.rows[r].start + a.rows[r].num_tokens;
    most = fmaxf(most, static_cast<float>(a.window > 0 && a.window < keys ? a.window : keys));
  }
  const int64_t keys = static_cast<int64_t>(WarpMax(most));
  if (first == 0) *plan.part_keys = is_divided ? (keys + shape.parts - 1) / shape.parts : int64_t{1} << 30;
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_FLASHINFER_PLAN_CUH_
