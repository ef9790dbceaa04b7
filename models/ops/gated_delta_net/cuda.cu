// The gated delta net, for decode and prefill alike: the state in registers, token after token.
#include "models/kernels/cuda/columns.cuh"
#include "models/ops/gated_delta_net/gated_delta_net_args.h"

namespace berth::ops::cuda {
namespace {

// What a token's pass over the state gives, summed over the key's dimensions.
struct DeltaSums {
  float qq = 0, kk = 0, qk = 0;  // before q and k are normed
  float state_q = 0, state_k = 0;
};

// blockIdx = (row, value head, kBlockColumns of its columns). Each column's threads hold all of q and k between them,
// so that their lengths come with the products. The state before the token gives both what k and what q reads of it:
// y = decay S^T q + (q k) d.
template <typename T, int kSteps>
__global__ void __launch_bounds__(kColumnThreads) DeltaNetKernel(const __grid_constant__ DeltaNetArgs a, bool aligned) {
  const Row row = a.rows[blockIdx.x];
  if (row.num_tokens == 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int depth = static_cast<int>(a.key_dim);
  const int64_t p = static_cast<int64_t>(blockIdx.z) * kBlockColumns + ColumnOfThread();
  const bool exists = p < a.value_dim;  // all threads of a warp take part in the sums
  const int64_t q_column = head / (a.v_heads / a.k_heads) * a.key_dim;
  const int64_t k_column = q_column + a.k_heads * a.key_dim;
  const int64_t v_column = 2 * a.k_heads * a.key_dim + head * a.value_dim + p;
  const float q_scale = 1.0f / sqrtf(static_cast<float>(depth));
  float* state =
      reinterpret_cast<float*>(a.arena + a.units[blockIdx.x] + a.state_offset) + head * a.key_dim * a.value_dim + p;
  Column<kSteps> s;
  s.Read(row.start == 0 || !exists ? nullptr : state, depth, a.value_dim);
  for (int64_t token = row.first_token; token < row.first_token + row.num_tokens; ++token) {
    const T* qkv = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
    const float step = Softplus(Load(static_cast<const T*>(a.a) + token * a.a_stride + head) + a.dt_bias[head]);
    const float decay = expf(a.rate[head] * step);
    const float beta = a.beta_scale * Sigmoid(Load(static_cast<const T*>(a.b) + token * a.b_stride + head));
    DeltaSums sums;
    ForRuns<kSteps>(depth, [&](int j, int n) {
      float q[4], k[4];
      LoadFew(qkv + q_column + n, depth - n, aligned, q);
      LoadFew(qkv + k_column + n, depth - n, aligned, k);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        sums.qq = fmaf(q[u], q[u], sums.qq);
        sums.kk = fmaf(k[u], k[u], sums.kk);
        sums.qk = fmaf(q[u], k[u], sums.qk);
        sums.state_q = fmaf(s.numbers[j][u], q[u], sums.state_q);
        sums.state_k = fmaf(s.numbers[j][u], k[u], sums.state_k);
      }
    });
    const float q_factor = q_scale / sqrtf(SliceSum(sums.qq) + a.norm_eps);
    const float k_factor = 1.0f / sqrtf(SliceSum(sums.kk) + a.norm_eps);
    const float qk = SliceSum(sums.qk) * q_factor * k_factor;
    const float read_q = SliceSum(sums.state_q) * q_factor;
    const float read_k = SliceSum(sums.state_k) * k_factor;
    const float value = exists ? Load(qkv + v_column) : 0.0f;
    const float d = beta * (value - decay * read_k);
    if (exists && SliceOfThread() == 0) {
      Store(static_cast<T*>(a.out) + (token * a.v_heads + head) * a.value_dim + p, fmaf(qk, d, decay * read_q));
    }
    const float factor = d * k_factor;
    ForRuns<kSteps>(depth, [&](int j, int n) {
      float k[4];
      LoadFew(qkv + k_column + n, depth - n, aligned, k);
#pragma unroll
      for (int u = 0; u < 4; ++u) s.numbers[j][u] = fmaf(s.numbers[j][u], decay, factor * k[u]);
    });
  }
  if (exists) s.Write(state, depth, a.value_dim);
}

}  // namespace

template <typename T>
int DeltaNet(const DeltaNetArgs& a, const LaunchParams& launch) {
  const dim3 grid = Grid(launch.num_rows, a.v_heads, CeilDiv(a.value_dim, kBlockColumns));
  const bool aligned = AreAligned<T>(a.qkv, a.qkv_stride) && AreAligned<T>(nullptr, a.key_dim);
  const int64_t steps = CeilDiv(a.key_dim, kDepthStep);
  if (steps <= 8) return Launch(DeltaNetKernel<T, 8>, grid, kColumnThreads, 0, launch.stream, a, aligned);
  if (steps <= 16) return Launch(DeltaNetKernel<T, 16>, grid, kColumnThreads, 0, launch.stream, a, aligned);
  return kNotCovered;
}

BERTH_CUDA_ENTRY(DeltaNet, DeltaNetArgs)

}  // namespace berth::ops::cuda
