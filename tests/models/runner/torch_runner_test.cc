// What a step's exceptions become. The models throw what a GPU's would.
#include "models/runner/torch_runner.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"

namespace berth {
namespace {

class ThrowingModel final : public Model {
 public:
  explicit ThrowingModel(std::function<void()> work) : work_(std::move(work)) {}
  std::vector<LayerCacheSpec> cache_specs() const override {
    return {{.kv = KvSpec{.kv_heads = 1, .key_dim = 4, .value_dim = 4, .dtype = DType::kFloat32}}};
  }
  int64_t vocab_size() const override { return 2; }
  int64_t hidden_size() const override { return 4; }
  at::Tensor Forward(const StepBatch&) const override {
    work_();
    return {};
  }

 private:
  std::function<void()> work_;
};

absl::Status RunStepOf(std::function<void()> work) {
  const ThrowingModel model(std::move(work));
  const CachePlan plan = *BuildCachePlan(model.cache_specs(), /*block_tokens=*/16);
  const auto storage = *CreateHostStorage(int64_t{1} << 20);
  const auto cache = *Cache::Create(plan, storage.get(), {});
  Execution execution;
  TorchRunner runner(ModelInfo(), &model, StepBatch(plan, storage->base(), at::kCPU, &execution), nullptr);
  SequenceLease lease = cache->NewLease();
  EXPECT_TRUE(lease.Grow(1).ok());
  const std::vector<int32_t> tokens = {1};
  StepPlan step;
  step.rows.push_back({.lease = &lease, .tokens = tokens});
  step.num_tokens = 1;
  StepResult result;
  return runner.Run(step, &result);
}

TEST(TorchRunnerTest, ExceptionsOfAStepBecomeItsStatus) {
  EXPECT_TRUE(RunStepOf([] {}).ok());
  EXPECT_EQ(RunStepOf([] {
              throw c10::AcceleratorError({__func__, __FILE__, 1}, 700, "illegal memory access");
            }),
            absl::DataLossError("step failed: illegal memory access"));
  EXPECT_EQ(RunStepOf([] {
              throw c10::AcceleratorError({__func__, __FILE__, 1}, 1, "invalid argument");
            }),
            absl::InternalError("step failed: invalid argument"));
  EXPECT_EQ(RunStepOf([] {
              throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "CUDA out of memory");
            }),
            absl::ResourceExhaustedError("step failed: CUDA out of memory"));
  EXPECT_EQ(RunStepOf([] { throw std::bad_alloc(); }).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace berth
