#include "models/kernels/cuda/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace berth::cuda {
namespace {

class TorchGraph final : public Graph {
 public:
  void Launch() override { graph_.replay(); }
  at::cuda::CUDAGraph& graph() { return graph_; }

 private:
  at::cuda::CUDAGraph graph_;
};

class TorchGraphRecorder final : public GraphRecorder {
 public:
  TorchGraphRecorder() : pool_(at::cuda::graph_pool_handle()), device_(c10::kCUDA, 0), guard_(c10::kCUDA) {
    // The default stream cannot be recorded from.
    stream_ = guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/false);
  }

  std::unique_ptr<Graph> Record(const std::function<void()>& work) override {
    auto recorded = std::make_unique<TorchGraph>();
    const c10::StreamGuard on(stream_);
    // Of this thread alone: another one may be copying caches to host memory.
    recorded->graph().capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        recorded->graph().capture_end();
      } catch (const c10::Error&) {  // of a recording that is not to be kept
      }
      throw;
    }
    recorded->graph().capture_end();
    return recorded;
  }

 private:
  at::cuda::MempoolId_t pool_;
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::kCUDA, 0)};
};

}  // namespace
}  // namespace berth::cuda

extern "C" __attribute__((visibility("default"))) berth::cuda::GraphRecorder* BerthCudaGraphRecorder() {
  static auto* const recorder = new berth::cuda::TorchGraphRecorder();
  return recorder;
}
