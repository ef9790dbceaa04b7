#include "models/kernels/cuda/graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace berth::ops::cuda {
namespace {

constexpr c10::DeviceIndex kDevice = 0;

class TorchGraph final : public Graph {
 public:
  // `num_graphs` counts those that there are, and must outlive it.
  explicit TorchGraph(int64_t* num_graphs) : num_graphs_(num_graphs) { ++*num_graphs_; }
  ~TorchGraph() override { --*num_graphs_; }
  TorchGraph(const TorchGraph&) = delete;
  TorchGraph& operator=(const TorchGraph&) = delete;

  void Launch() override { graph_.replay(); }
  at::cuda::CUDAGraph& graph() { return graph_; }

 private:
  int64_t* num_graphs_;
  at::cuda::CUDAGraph graph_;
};

class TorchGraphRecorder final : public GraphRecorder {
 public:
  TorchGraphRecorder() : device_(c10::kCUDA, kDevice), guard_(c10::kCUDA) {
    // The default stream cannot be recorded from.
    stream_ = guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/false);
  }

  std::unique_ptr<Graph> Record(const std::function<void()>& work) override {
    // A pool goes with its last graph, and cannot be taken again.
    if (num_graphs_ == 0) pool_ = at::cuda::graph_pool_handle();
    auto recorded = std::make_unique<TorchGraph>(&num_graphs_);
    const c10::StreamGuard on(stream_);
    try {
      // Captures this thread only: another one may be copying caches to host memory.
      recorded->graph().capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      work();
      recorded->graph().capture_end();
    } catch (...) {
      Abandon(std::move(recorded));
      throw;
    }
    return recorded;
  }

 private:
  // Ends a recording that failed. Where capture_end fails too it leaves LibTorch's allocators as if there were one.
  void Abandon(std::unique_ptr<TorchGraph> recorded) {
    const auto attempt = [](const auto& step) {
      try {
        step();
      } catch (const c10::Error&) {  // it had been done
      }
    };
    attempt([&] { recorded->graph().capture_end(); });
    attempt([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(kDevice, pool_); });
    attempt([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_); });
    // The allocators may still ask this graph which memory is its own.
    failed_.push_back(std::move(recorded));
  }

  int64_t num_graphs_ = 0;
  std::vector<std::unique_ptr<TorchGraph>> failed_;
  at::cuda::MempoolId_t pool_;
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::kCUDA, kDevice)};
};

}  // namespace
}  // namespace berth::ops::cuda

extern "C" __attribute__((visibility("default"))) berth::ops::cuda::GraphRecorder* BerthCudaGraphRecorder() {
  static auto* const recorder = new berth::ops::cuda::TorchGraphRecorder();
  return recorder;
}
