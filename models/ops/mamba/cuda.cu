// The recurrences of the state-space models, for decode and prefill alike: the state in registers, token after token.
// Rows, heads and columns run side by side.
#include "models/kernels/cuda/columns.cuh"
#include "models/ops/mamba/mamba_args.h"

namespace berth::ops::cuda {
namespace {

constexpr int kMambaThreads = 128;

// Mamba-1: a thread for each channel of a row. Neighbours read the same b and c.
template <typename T, int kStates>
__global__ void __launch_bounds__(kMambaThreads) MambaKernel(const __grid_constant__ MambaScanArgs a) {
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kMambaThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const Row row = a.rows[blockIdx.x];
  if (row.num_tokens == 0) return;
  const int64_t group = channel / (a.channels / a.groups);
  const int states = static_cast<int>(a.state_dim);
  float* state = reinterpret_cast<float*>(a.arena + a.units[blockIdx.x] + a.state_offset) + channel;
  float h[kStates], rate[kStates];
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    if (n >= states) break;
    h[n] = row.start == 0 ? 0.0f : state[n * a.channels];
    rate[n] = a.a[n * a.channels + channel];
  }
  const float dt_bias = a.dt_bias[channel];
  const float d = a.d[channel];
  for (int64_t token = row.first_token; token < row.first_token + row.num_tokens; ++token) {
    const T* b = static_cast<const T*>(a.b) + token * a.b_stride + group * a.b_group_stride;
    const T* c = static_cast<const T*>(a.c) + token * a.c_stride + group * a.c_group_stride;
    const float x = Load(static_cast<const T*>(a.x) + token * a.x_stride + channel);
    const float gate = Load(static_cast<const T*>(a.gate) + token * a.gate_stride + channel);
    const float dt = Softplus(Load(static_cast<const T*>(a.dt) + token * a.dt_stride + channel) + dt_bias);
    const float input = dt * x;
    float y = d * x;
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (n >= states) break;
      h[n] = fmaf(h[n], expf(dt * rate[n]), input * Load(b + n));
      y = fmaf(h[n], Load(c + n), y);
    }
    Store(static_cast<T*>(a.out) + token * a.channels + channel, y * Silu(gate));
  }
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    if (n >= states) break;
    state[n * a.channels] = h[n];
  }
}

// Mamba-2: blockIdx = (row, head, kBlockColumns of the head's columns).
template <typename T, int kSteps>
__global__ void __launch_bounds__(kColumnThreads) Mamba2Kernel(const __grid_constant__ Mamba2ScanArgs a, bool aligned) {
  const Row row = a.rows[blockIdx.x];
  if (row.num_tokens == 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int depth = static_cast<int>(a.state_dim);
  const int64_t p = static_cast<int64_t>(blockIdx.z) * kBlockColumns + ColumnOfThread();
  const bool exists = p < a.head_dim;  // all threads of a warp take part in the sums
  const int64_t inner = a.heads * a.head_dim;
  const int64_t x_column = head * a.head_dim + p;
  const int64_t b_column = inner + head / (a.heads / a.groups) * a.state_dim;
  const int64_t c_column = b_column + a.groups * a.state_dim;
  float* state =
      reinterpret_cast<float*>(a.arena + a.units[blockIdx.x] + a.state_offset) + head * a.head_dim * a.state_dim + p;
  Column<kSteps> h;
  h.Read(row.start == 0 || !exists ? nullptr : state, depth, a.head_dim);
  const int64_t num_prompt = a.prompt_lengths[blockIdx.x] - row.start;
  for (int64_t t = 0; t < row.num_tokens; ++t) {
    const int64_t token = row.first_token + t;
    const T* xbc = static_cast<const T*>(a.xbc) + token * a.xbc_stride;
    float dt = Softplus(Load(static_cast<const T*>(a.dt) + token * a.dt_stride + head) + a.dt_bias[head]);
    if (t < num_prompt) dt = dt < a.dt_min ? a.dt_min : (dt > a.dt_max ? a.dt_max : dt);
    const float decay = expf(dt * a.a[head]);
    const float x = exists ? Load(xbc + x_column) : 0.0f;
    const float input = dt * x;
    float sum = 0;
    ForRuns<kSteps>(depth, [&](int j, int n) {
      float b[4], c[4];
      LoadFew(xbc + b_column + n, depth - n, aligned, b);
      LoadFew(xbc + c_column + n, depth - n, aligned, c);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        h.numbers[j][u] = fmaf(h.numbers[j][u], decay, input * b[u]);
        sum = fmaf(h.numbers[j][u], c[u], sum);
      }
    });
    sum = SliceSum(sum);
    if (exists && SliceOfThread() == 0) {
      Store(static_cast<T*>(a.out) + token * inner + x_column, fmaf(a.d[head], x, sum));
    }
  }
  if (exists) h.Write(state, depth, a.head_dim);
}

}  // namespace

template <typename T>
int MambaScan(const MambaScanArgs& a, const LaunchParams& launch) {
  const dim3 grid = Grid(launch.num_rows, CeilDiv(a.channels, kMambaThreads));
  if (a.state_dim <= 16) return Launch(MambaKernel<T, 16>, grid, kMambaThreads, 0, launch.stream, a);
  if (a.state_dim <= 64) return Launch(MambaKernel<T, 64>, grid, kMambaThreads, 0, launch.stream, a);
  return kNotCovered;
}

template <typename T>
int Mamba2Scan(const Mamba2ScanArgs& a, const LaunchParams& launch) {
  const dim3 grid = Grid(launch.num_rows, a.heads, CeilDiv(a.head_dim, kBlockColumns));
  const bool aligned = AreAligned<T>(a.xbc, a.xbc_stride) && AreAligned<T>(nullptr, a.heads * a.head_dim) &&
                       AreAligned<T>(nullptr, a.state_dim);
  const int64_t steps = CeilDiv(a.state_dim, kDepthStep);
  if (steps <= 8) return Launch(Mamba2Kernel<T, 8>, grid, kColumnThreads, 0, launch.stream, a, aligned);
  if (steps <= 16) return Launch(Mamba2Kernel<T, 16>, grid, kColumnThreads, 0, launch.stream, a, aligned);
  return kNotCovered;
}

BERTH_CUDA_ENTRY(MambaScan, MambaScanArgs)
BERTH_CUDA_ENTRY(Mamba2Scan, Mamba2ScanArgs)

}  // namespace berth::ops::cuda
