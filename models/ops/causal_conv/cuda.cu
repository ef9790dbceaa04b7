// The depthwise causal convolution: a thread for each channel of a tile of tokens.
#include "models/kernels/cuda/device.cuh"
#include "models/ops/causal_conv/causal_conv_args.h"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 128;

// One channel of one row.
template <typename T>
struct ConvChannel {
  const Row* row;
  T* state;    // [kernel - 1, channels]
  const T* x;  // of the row's first token
  T* out;

  __device__ ConvChannel(const ConvArgs& a, int64_t row_index, int64_t channel) : row(a.rows + row_index) {
    state = reinterpret_cast<T*>(a.arena + a.units[row_index] + a.state_offset) + channel;
    x = static_cast<const T*>(a.x) + row->first_token * a.x_stride + channel;
    out = static_cast<T*>(a.out) + row->first_token * a.channels + channel;
  }
  // The row's input at `token` of this step, or before it.
  __device__ const T* Input(const ConvArgs& a, int64_t token) const {
    return token >= 0 ? x + token * a.x_stride : state + (token + a.kernel - 1) * a.channels;
  }
};

// The newest inputs, oldest first. Ascending order reads each old one before it is overwritten.
template <typename T>
__device__ inline void UpdateState(const ConvArgs& a, const ConvChannel<T>& c) {
  for (int64_t k = 0; k < a.kernel - 1; ++k) {
    const int64_t source = c.row->num_tokens - (a.kernel - 1) + k;
    T value;
    if (source < 0 && c.row->start == 0) {
      Store(&value, 0.0f);
    } else {
      value = *c.Input(a, source);
    }
    c.state[k * a.channels] = value;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ConvKernel(const __grid_constant__ ConvArgs a, const int64_t* tiles) {
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const int64_t first = tiles[2 * blockIdx.x + 1];
  const ConvChannel<T> c(a, tiles[2 * blockIdx.x], channel);
  const int64_t last = min(first + kQueryTile, c.row->num_tokens);
  for (int64_t t = first; t < last; ++t) {
    float sum = a.bias == nullptr ? 0.0f : a.bias[channel];
    for (int64_t k = 0; k < a.kernel; ++k) {
      const int64_t source = t - (a.kernel - 1) + k;
      if (source < 0 && c.row->start == 0) continue;
      sum = fmaf(Load(c.Input(a, source)), a.weight[k * a.channels + channel], sum);
    }
    Store(c.out + t * a.channels, a.activation == ConvActivation::kSilu ? Silu(sum) : sum);
  }
  // A row of several tiles keeps its state until all of them have read it.
  if (c.row->num_tokens > 0 && c.row->num_tokens <= kQueryTile) UpdateState(a, c);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ConvStateKernel(const __grid_constant__ ConvArgs a) {
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const ConvChannel<T> c(a, blockIdx.x, channel);
  if (c.row->num_tokens > kQueryTile) UpdateState(a, c);
}

}  // namespace

template <typename T>
int Conv(const ConvArgs& a, const LaunchParams& launch) {
  const int64_t columns = CeilDiv(a.channels, kThreads);
  const int result =
      Launch(ConvKernel<T>, Grid(launch.num_tiles, columns), kThreads, 0, launch.stream, a, launch.tiles);
  if (result != kLaunched || launch.longest_row <= kQueryTile) return result;
  return Launch(ConvStateKernel<T>, Grid(launch.num_rows, columns), kThreads, 0, launch.stream, a);
}

BERTH_CUDA_ENTRY(Conv, ConvArgs)

}  // namespace berth::ops::cuda
