// What the tests of constrained requests share.
#ifndef BERTH_TESTS_SCHEDULER_OUTPUT_CONSTRAINED_REQUESTS_H_
#define BERTH_TESTS_SCHEDULER_OUTPUT_CONSTRAINED_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"
#include "tests/testing/fake_constraint.h"

namespace berth {

inline const Scheduler::Options kOptions = {
    .max_running = 8, .max_step_tokens = 32, .prefill_chunk_tokens = 8, .max_sequence_tokens = 1000};
inline constexpr int32_t kEnd = 42;

inline std::vector<std::vector<LayerCacheSpec>> AllLayers() {
  return {{StaticLayer()},
          {RecurrentLayer()},
          {SlidingLayer(6, 5), StaticLayer()},
          HybridLayers(),
          {CrossLayer(), RecurrentLayer()}};
}

// Its output is one of `choices`.
inline Request Choosing(Request request, std::vector<std::vector<int32_t>> choices) {
  request.stop_token_ids = {kEnd};
  request.constraint = std::make_shared<ChoiceConstraint>(std::move(choices), request.stop_token_ids);
  return request;
}

inline std::vector<int32_t> Range(int32_t first, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

}  // namespace berth

#endif  // BERTH_TESTS_SCHEDULER_OUTPUT_CONSTRAINED_REQUESTS_H_
