#include "tests/models/ops/emulated_flashinfer_plan.h"

#include <algorithm>
#include <memory>

#include "models/ops/paged_attention/flashinfer_plan.cuh"

namespace berth {

Plan MakePlan(const PlanCase& of) {
  std::vector<int64_t> tiles;
  for (size_t r = 0; r < of.rows.size(); ++r) {
    for (int64_t first = 0; first < std::max<int64_t>(1, of.rows[r].num_tokens); first += ops::kQueryTile) {
      tiles.insert(tiles.end(), {static_cast<int64_t>(r), first});
    }
  }
  ops::cuda::FlashInferShape shape = {};
  shape.group = of.group;
  shape.tile_lanes = of.tile_lanes;
  shape.first_tile = of.leading;
  shape.num_tiles = static_cast<int64_t>(tiles.size() / 2) - of.leading;
  shape.parts = of.parts;
  shape.num_rows = static_cast<int64_t>(of.rows.size());

  const auto count = static_cast<size_t>(shape.items());
  std::vector<int64_t> rows(count, -1), of_row(count, -1), parts(count, -1);
  const auto is_item = std::make_unique<bool[]>(count);
  Plan plan;
  plan.first_tokens.resize(of.rows.size());
  plan.first_results.resize(of.rows.size() + 1);
  ops::AttentionArgs args = {};
  args.rows = of.rows.data();
  args.tiles = tiles.data();
  args.window = of.window;
  ops::cuda::Launch(ops::cuda::FlashInferPlanKernel, ops::cuda::Grid(1), ops::cuda::kPlanThreads, 0, nullptr, args,
                    shape,
                    ops::cuda::FlashInferPlan{rows.data(), of_row.data(), parts.data(), is_item.get(),
                                              plan.first_tokens.data(), plan.first_results.data(), &plan.part_keys},
                    static_cast<int>(shape.items_of_tile()));
  for (size_t i = 0; i < count; ++i) plan.items.push_back({rows[i], of_row[i], parts[i], is_item[i]});
  return plan;
}

}  // namespace berth
