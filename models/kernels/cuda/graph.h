// CUDA graphs: work on the GPU, recorded once and enqueued again as a whole.
//
// What records them needs CUDA's half of LibTorch, whose allocator has to know of it, so it is a library of its own,
// libberth_cuda_graph.so, which is loaded after that. Engine thread only.
#ifndef BERTH_MODELS_KERNELS_CUDA_GRAPH_H_
#define BERTH_MODELS_KERNELS_CUDA_GRAPH_H_

#include <functional>
#include <memory>

namespace berth::ops::cuda {

class Graph {
 public:
  virtual ~Graph() = default;
  // Enqueues the work on ATen's current stream, with the addresses and sizes that it was recorded with.
  virtual void Launch() = 0;
};

class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // Calls `work` and records its kernels instead of running them. The tensors that `work` makes lie in memory that only
  // graphs use, all of them the same, so their values last until another graph is launched. `work` may not wait for the
  // device. Throws c10::Error, and what `work` throws; then nothing is recorded, and nothing was run.
  virtual std::unique_ptr<Graph> Record(const std::function<void()>& work) = 0;
};

}  // namespace berth::ops::cuda

// The one symbol that the library exports. It lives as long as the program.
extern "C" berth::ops::cuda::GraphRecorder* BerthCudaGraphRecorder();

#endif  // BERTH_MODELS_KERNELS_CUDA_GRAPH_H_
