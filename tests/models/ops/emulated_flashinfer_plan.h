// The plan of FlashInfer's items (flashinfer_plan.cuh), made by its kernel in the emulation.
#ifndef BERTH_TESTS_MODELS_OPS_EMULATED_FLASHINFER_PLAN_H_
#define BERTH_TESTS_MODELS_OPS_EMULATED_FLASHINFER_PLAN_H_

#include <cstdint>
#include <vector>

#include "models/step/row.h"

namespace berth {

struct PlanCase {
  std::vector<ops::Row> rows;
  int64_t group = 1, tile_lanes = 16;
  int64_t parts = 1;    // of each row's keys
  int64_t leading = 0;  // rows with a tile each that the launch leaves out
  int64_t window = 0;   // 0: none
};

struct PlannedItem {
  int64_t row, tile, part;
  bool is_item;
};
struct Plan {
  std::vector<PlannedItem> items;
  std::vector<int64_t> first_tokens, first_results;
  int64_t part_keys = 0;
};

Plan MakePlan(const PlanCase& of);

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_OPS_EMULATED_FLASHINFER_PLAN_H_
