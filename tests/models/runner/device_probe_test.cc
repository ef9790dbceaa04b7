// The smallest steps of a run on a GPU, one by one, so that the first that fails is named. BERTH_TEST_DEVICE names the
// GPU; without it there is nothing to probe, and one test says so.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "models/ops/elementwise/elementwise.h"
#include "models/step/execution.h"
#include "tests/models/test_device.h"

namespace berth {
namespace {

class DeviceProbeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_ == nullptr) GTEST_SKIP() << "BERTH_TEST_DEVICE is not set: no GPU was probed";
    execution_.cuda_kernels = gpu_->kernels;
    at::manual_seed(16);
  }
  at::TensorOptions Options(at::ScalarType type = at::kFloat) const {
    return at::TensorOptions().dtype(type).device(gpu_->device);
  }
  at::Tensor Norm(const at::Tensor& x) { return ops::RmsNorm(x, at::ones({x.size(1)}, Options()), 1e-5, execution_); }

  const TestDevice* const gpu_ = GetTestDevice();
  Execution execution_;
};

TEST_F(DeviceProbeTest, MemoryIsAllocatedAndMeasured) {
  const auto memory = GetDeviceMemory(gpu_->device);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->free_bytes, int64_t{1} << 30);
  EXPECT_EQ(at::zeros({1000}, Options()).sum().item<float>(), 0);
}

TEST_F(DeviceProbeTest, ProductsOfBothTypesRun) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({7, 64}), weight = at::randn({48, 64});
    const at::Tensor product = at::linear(x.to(Options(type)), weight.to(Options(type))).cpu().to(at::kFloat);
    EXPECT_TRUE(at::allclose(product, at::linear(x, weight), 0.02, type == at::kFloat ? 1e-4 : 0.5)) << type;
  }
}

TEST_F(DeviceProbeTest, AnOwnKernelRuns) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({3, 256}).to(type);
    const at::Tensor expected = reference::RmsNorm(x, at::ones({256}), 1e-5).to(at::kFloat);
    EXPECT_TRUE(at::allclose(Norm(x.to(gpu_->device)).cpu().to(at::kFloat), expected, 0.01, 1e-5)) << type;
  }
}

TEST_F(DeviceProbeTest, AnEmptyGraphIsRecordedAndLaunched) {
  gpu_->recorder->Record([] {})->Launch();
}

TEST_F(DeviceProbeTest, AGraphReadsWhatItsInputsHoldAtTheLaunch) {
  const at::Tensor x = at::randn({4, 128}, Options());
  Norm(x);  // loads the kernel
  at::Tensor out;
  const std::unique_ptr<ops::cuda::Graph> graph = gpu_->recorder->Record([&] { out = Norm(x); });
  for (int turn = 0; turn < 3; ++turn) {
    const at::Tensor values = at::randn({4, 128});
    x.copy_(values);
    graph->Launch();
    EXPECT_TRUE(at::allclose(out.cpu(), reference::RmsNorm(values, at::ones({128}), 1e-5), 0, 1e-5)) << turn;
  }
}

TEST_F(DeviceProbeTest, PinnedMemoryIsCopiedWithoutWaiting) {
  at::Tensor pinned = at::empty({1 << 20}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  pinned.fill_(3);
  const at::Tensor there = pinned.to(gpu_->device, /*non_blocking=*/true);
  EXPECT_EQ(there.to(at::kLong).sum().item<int64_t>(), 3 << 20);
}

// As the copier waits for the steps: one thread records, another one's stream waits.
TEST_F(DeviceProbeTest, AnEventOrdersTheStreamsOfTwoThreads) {
  const c10::impl::VirtualGuardImpl guard(gpu_->device.type());
  const at::Tensor x = at::zeros({1 << 22}, Options());
  c10::Event event(gpu_->device.type());
  for (int i = 0; i < 100; ++i) x.add_(1);
  event.record(guard.getStream(gpu_->device));
  float read = 0;
  std::thread([&] {
    const c10::Stream own = guard.getStreamFromGlobalPool(gpu_->device, /*isHighPriority=*/false);
    event.block(own);
    const c10::Stream before = guard.exchangeStream(own);
    read = x[x.numel() - 1].item<float>();
    guard.exchangeStream(before);
  }).join();
  EXPECT_EQ(read, 100);
}

}  // namespace
}  // namespace berth
