// What FlashInfer's kernel would compute by the plan: each lane of each row once, over each key once. The kernel itself
// cannot be emulated; how it reads a plan is written here as in version 0.6.9's attention/prefill.cuh.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/ops/emulated_flashinfer_plan.h"

namespace berth {
namespace {

using Random = std::mt19937;

int64_t Draw(Random& random, int64_t first, int64_t last) {
  return std::uniform_int_distribution<int64_t>(first, last)(random);
}

std::vector<ops::Row> DrawRows(Random& random, int64_t count, int64_t most_tokens) {
  std::vector<ops::Row> rows;
  int64_t token = 0;
  for (int64_t r = 0; r < count; ++r) {
    rows.push_back({.first_token = token, .num_tokens = Draw(random, 0, most_tokens), .start = Draw(random, 0, 5000)});
    token += rows.back().num_tokens;
  }
  return rows;
}

class FlashInferPlanTest : public ::testing::Test {
 protected:
  ~FlashInferPlanTest() override { cuda_emulation::SetOrder(cuda_emulation::Order::kAscending); }

  Random random_{7};
};

TEST_F(FlashInferPlanTest, HasEachLaneOnce) {
  for (int run = 0; run < 200; ++run) {
    cuda_emulation::SetOrder(cuda_emulation::Order::kRandom, run);
    PlanCase of;
    of.group = std::vector<int64_t>{1, 2, 3, 4, 7, 8, 16}[Draw(random_, 0, 6)];
    of.tile_lanes = std::vector<int64_t>{16, 64, 128}[Draw(random_, 0, 2)];
    of.rows = DrawRows(random_, Draw(random_, 1, 9), 70);
    of.leading = of.rows[0].num_tokens <= ops::kQueryTile ? Draw(random_, 0, 1) : 0;
    const Plan plan = MakePlan(of);
    std::vector<std::vector<int>> times;
    for (const ops::Row& row : of.rows) times.emplace_back(row.num_tokens * of.group);
    for (const PlannedItem& item : plan.items) {
      EXPECT_EQ(item.part, 0);
      if (!item.is_item) continue;
      std::vector<int>& of_row = times[item.row];
      const int64_t end = std::min<int64_t>((item.tile + 1) * of.tile_lanes, of_row.size());
      for (int64_t lane = item.tile * of.tile_lanes; lane < end; ++lane) ++of_row[lane];
    }
    for (size_t r = 0; r < of.rows.size(); ++r) {
      const int expected = static_cast<int64_t>(r) < of.leading ? 0 : 1;
      EXPECT_EQ(times[r], std::vector<int>(times[r].size(), expected)) << "run " << run << ", row " << r;
      EXPECT_EQ(plan.first_tokens[r], of.rows[r].first_token);
      EXPECT_EQ(plan.first_results[r], of.rows[r].first_token);
    }
    EXPECT_GT(plan.part_keys, 6000);
  }
}

TEST_F(FlashInferPlanTest, HasEachKeyOnce) {
  for (int run = 0; run < 200; ++run) {
    cuda_emulation::SetOrder(cuda_emulation::Order::kRandom, run);
    PlanCase of;
    of.group = Draw(random_, 1, 16);
    of.parts = Draw(random_, 2, 20);
    of.window = run % 2 == 0 ? 0 : Draw(random_, 1, 3000);
    // As graphs have them: a row without a token has a place for one.
    of.rows = DrawRows(random_, Draw(random_, 1, 300), 1);
    for (size_t r = 0; r < of.rows.size(); ++r) of.rows[r].first_token = static_cast<int64_t>(r);
    const Plan plan = MakePlan(of);
    ASSERT_EQ(plan.items.size(), of.rows.size() * of.parts);
    std::vector<int64_t> next(of.rows.size());  // the key that a row's next part begins with
    for (size_t i = 0; i < plan.items.size(); ++i) {
      const PlannedItem& item = plan.items[i];
      const ops::Row& row = of.rows[item.row];
      EXPECT_EQ(item.row, static_cast<int64_t>(i) / of.parts);
      EXPECT_EQ(item.part, static_cast<int64_t>(i) % of.parts);
      EXPECT_EQ(item.tile, 0);
      EXPECT_EQ(item.is_item, row.num_tokens == 1);
      const int64_t keys = row.start + row.num_tokens;
      const int64_t first = of.window > 0 ? std::max<int64_t>(0, keys - of.window) : 0;
      const int64_t begin = std::min(item.part * plan.part_keys + first, keys);
      EXPECT_EQ(begin, item.part == 0 ? first : next[item.row]);
      next[item.row] = std::min((item.part + 1) * plan.part_keys + first, keys);
    }
    for (size_t r = 0; r < of.rows.size(); ++r) EXPECT_EQ(next[r], of.rows[r].start + of.rows[r].num_tokens) << run;
    for (size_t r = 0; r < of.rows.size(); ++r) EXPECT_EQ(plan.first_tokens[r], static_cast<int64_t>(r));
    for (size_t r = 0; r <= of.rows.size(); ++r) {
      EXPECT_EQ(plan.first_results[r], static_cast<int64_t>(r) * of.parts);
    }
    EXPECT_LE(plan.part_keys, (of.window > 0 ? of.window : 5001) / of.parts + 1) << "no longer than needed";
  }
}

}  // namespace
}  // namespace berth
