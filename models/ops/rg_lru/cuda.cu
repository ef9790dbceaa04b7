// The RG-LRU: a thread for each channel of a row, which goes through its tokens.
#include "models/kernels/cuda/device.cuh"
#include "models/ops/rg_lru/rg_lru_args.h"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads) RgLruKernel(const __grid_constant__ RgLruArgs a) {
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (channel >= a.width) return;
  const Row row = a.rows[blockIdx.x];
  if (row.num_tokens == 0) return;
  float* state = reinterpret_cast<float*>(a.arena + a.units[blockIdx.x] + a.state_offset) + channel;
  const int64_t block = channel / a.block_width;
  const T* x = static_cast<const T*>(a.x) + row.first_token * a.x_stride + channel;
  const T* gate = static_cast<const T*>(a.gates) + row.first_token * a.gate_token_stride + block * a.gate_block_stride +
                  (channel - block * a.block_width);
  T* out = static_cast<T*>(a.out) + row.first_token * a.width + channel;
  const float input_bias = a.input_bias[channel];
  const float recurrence_bias = a.recurrence_bias[channel];
  const float rate = a.rate[channel];
  float h = row.start == 0 ? 0.0f : *state;
  for (int64_t t = 0; t < row.num_tokens; ++t) {
    const float input = Sigmoid(Load(gate) + input_bias) * Load(x);
    if (row.start + t == 0) {
      h = input;
    } else {
      const float log_a = rate * Sigmoid(Load(gate + a.block_width) + recurrence_bias);
      // 1 - a^2 without the cancellation where a is near 1.
      h = fmaf(expf(log_a), h, sqrtf(-expm1f(2.0f * log_a)) * input);
    }
    Store(out, h);
    x += a.x_stride;
    gate += a.gate_token_stride;
    out += a.width;
  }
  *state = h;
}

}  // namespace

template <typename T>
int RgLru(const RgLruArgs& a, const LaunchParams& launch) {
  return Launch(RgLruKernel<T>, Grid(launch.num_rows, CeilDiv(a.width, kThreads)), kThreads, 0, launch.stream, a);
}

BERTH_CUDA_ENTRY(RgLru, RgLruArgs)

}  // namespace berth::ops::cuda
