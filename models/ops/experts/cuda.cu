// The choice of experts: a warp for each token, whose scores it holds in shared memory. And the sum of what they give:
// a thread for each run of columns.
#include "models/kernels/cuda/device.cuh"
#include "models/kernels/cuda/order.cuh"
#include "models/ops/experts/experts_args.h"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// As in cpu.inc.
__device__ inline uint32_t OrderOf(float value) { return isnan(value) ? 0xFFFFFFFFu : OrderedBits(value); }

// The place of the largest of `count` orders, which it makes 0; the first of equal ones. For a whole warp.
__device__ inline int TakeLargest(uint32_t* orders, int count) {
  uint32_t best = 0;
  int at = count;
  for (int i = Lane(); i < count; i += kWarp) {
    if (orders[i] > best) {
      best = orders[i];
      at = i;
    }
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, best, step);
    const int place = __shfl_xor_sync(kWholeWarp, at, step);
    if (other > best || (other == best && place < at)) {
      best = other;
      at = place;
    }
  }
  if (Lane() == 0) orders[at] = 0;
  __syncwarp();
  return at;
}

// The softmax of what the lanes hold of `count` numbers.
__device__ inline void WarpSoftmax(float* x, int count) {
  float max = -INFINITY, sum = 0.0f;
  for (int i = Lane(); i < count; i += kWarp) max = fmaxf(max, x[i]);
  max = WarpMax(max);
  for (int i = Lane(); i < count; i += kWarp) {
    x[i] = expf(x[i] - max);
    sum += x[i];
  }
  sum = WarpSum(sum);
  for (int i = Lane(); i < count; i += kWarp) x[i] /= sum;
}

// Excludes the experts outside the best groups. ranks, orders: [experts]; of_groups: [num_groups].
__device__ inline void KeepBestGroups(const RouterConfig& router, const float* ranks, uint32_t* orders,
                                      uint32_t* of_groups) {
  const int groups = static_cast<int>(router.num_groups);
  const int size = static_cast<int>(router.num_experts) / groups;
  for (int g = Lane(); g < groups; g += kWarp) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      const float rank = ranks[i];
      second = rank > best ? best : (rank > second ? rank : second);
      best = rank > best ? rank : best;
    }
    of_groups[g] = OrderOf(best + second);
  }
  __syncwarp();
  for (int64_t n = 0; n < router.top_groups; ++n) TakeLargest(of_groups, groups);
  for (int i = Lane(); i < groups * size; i += kWarp) {
    if (of_groups[i / size] != 0) orders[i] = OrderOf(-INFINITY);
  }
  __syncwarp();
}

// 4-byte numbers of a token in shared memory.
__host__ __device__ inline int64_t NumbersOfToken(const RouterConfig& router) {
  return 3 * router.num_experts + router.num_groups + router.top_k;
}

__global__ void __launch_bounds__(kThreads)
    ChooseExpertsKernel(const __grid_constant__ ChooseExpertsArgs a, int64_t tokens) {
  const RouterConfig& router = a.router;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + WarpIndex();
  if (token >= tokens) return;  // a whole warp; no barrier of the block follows
  const int count = static_cast<int>(router.num_experts), top_k = static_cast<int>(router.top_k);
  float* const scores = reinterpret_cast<float*>(shared_memory) + WarpIndex() * NumbersOfToken(router);
  float* const ranks = scores + count;
  uint32_t* const orders = reinterpret_cast<uint32_t*>(ranks + count);
  float* const weights = reinterpret_cast<float*>(orders + count + router.num_groups);
  for (int i = Lane(); i < count; i += kWarp) {
    const float logit = a.logits[token * count + i];
    scores[i] = router.routing == Routing::kSigmoid ? Sigmoid(logit) : logit;
  }
  if (router.routing == Routing::kSoftmax) WarpSoftmax(scores, count);
  for (int i = Lane(); i < count; i += kWarp) {
    ranks[i] = a.choice_bias == nullptr ? scores[i] : scores[i] + a.choice_bias[i];
    orders[i] = OrderOf(ranks[i]);
  }
  __syncwarp();
  if (router.num_groups > 1) KeepBestGroups(router, ranks, orders, orders + count);
  for (int k = 0; k < top_k; ++k) {
    const int expert = TakeLargest(orders, count);
    if (Lane() != 0) continue;
    a.experts[token * top_k + k] = expert;
    weights[k] = router.routing == Routing::kSigmoidOfChosen ? Sigmoid(scores[expert]) : scores[expert];
  }
  __syncwarp();
  if (router.routing == Routing::kSoftmaxOfChosen) {
    WarpSoftmax(weights, top_k);
    __syncwarp();
  }
  float sum = 0.0f;
  for (int k = 0; k < top_k; ++k) sum += weights[k];
  const float divisor = router.renormalize ? sum + static_cast<float>(router.sum_floor) : 1.0f;
  for (int k = Lane(); k < top_k; k += kWarp) {
    a.weights[token * top_k + k] = weights[k] / divisor * static_cast<float>(router.scale);
  }
}

// blockIdx = (token, kThreads runs of columns).
template <typename T>
__global__ void __launch_bounds__(kThreads) SumExpertsKernel(const __grid_constant__ SumExpertsArgs a, bool aligned) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kRun<T>;
  if (column >= a.columns) return;
  const int64_t token = blockIdx.x, left = a.columns - column;
  float sums[kRun<T>] = {};
  for (int64_t k = 0; k < a.top_k; ++k) {
    const int64_t row = token * a.top_k + k;
    float part[kRun<T>];
    LoadRun(static_cast<const T*>(a.parts) + row * a.columns + column, left, aligned, part);
    const float weight = a.weights == nullptr ? 1.0f : a.weights[row];
#pragma unroll
    for (int i = 0; i < kRun<T>; ++i) sums[i] = fmaf(part[i], weight, sums[i]);
  }
  StoreRun(static_cast<T*>(a.out) + token * a.columns + column, left, aligned, sums);
}

}  // namespace

template <typename T>
int ChooseExperts(const ChooseExpertsArgs& a, const LaunchParams& launch) {
  const int64_t bytes = kWarps * NumbersOfToken(a.router) * static_cast<int64_t>(sizeof(float));
  return Launch(ChooseExpertsKernel, Grid(CeilDiv(launch.num_tokens, kWarps)), kThreads, bytes, launch.stream, a,
                launch.num_tokens);
}

template <typename T>
int SumExperts(const SumExpertsArgs& a, const LaunchParams& launch) {
  const bool aligned = AreAligned<T>(a.parts, a.columns) && AreAligned<T>(a.out, a.columns);
  return Launch(SumExpertsKernel<T>, Grid(launch.num_tokens, CeilDiv(a.columns, kThreads * kRun<T>)), kThreads, 0,
                launch.stream, a, aligned);
}

BERTH_CUDA_ENTRY(ChooseExperts, ChooseExpertsArgs)
BERTH_CUDA_ENTRY(SumExperts, SumExpertsArgs)

}  // namespace berth::ops::cuda
