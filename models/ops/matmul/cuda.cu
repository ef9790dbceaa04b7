// Products with weights of 8 bits, products with experts, and gated products of few rows. Products of few rows are
// limited by reading the weights. A warp takes several outputs, so that each number of x that it reads serves all of
// them, and adds in float32. More rows of bfloat16 are multiplied in tiles, by the matrix units. For still more rows,
// weights of 8 bits are expanded to the activations' type, and the library computes the product.
#include "models/ops/elementwise/activated.cuh"
#include "models/ops/matmul/matmul_args.h"
#include "models/ops/matmul/tile_product.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kOutputs = 4;  // of a warp
constexpr int kBlockOutputs = kThreads / kWarp * kOutputs;
constexpr int kBytes = 16;  // of a weight's row that a thread loads at once

// Weights that a thread has. Only the first `left` exist, and the others are zeros.
__device__ inline void LoadWeights(const int8_t* p, int64_t left, bool aligned, float* v) {
  if (aligned && left >= kBytes) {
    const uint4 x = *reinterpret_cast<const uint4*>(p);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < kBytes; ++i) v[i] = static_cast<float>(static_cast<int8_t>(words[i / 4] >> (i % 4 * 8)));
    return;
  }
#pragma unroll
  for (int i = 0; i < kBytes; ++i) v[i] = i < left ? static_cast<float>(p[i]) : 0.0f;
}
template <typename T>
__device__ inline void LoadWeights(const T* p, int64_t left, bool aligned, float* v) {
  LoadRun(p, left, aligned, v);
}

// A lane's part of the sums: `rows` rows of x times the rows output_of(o) of the matrix. kRows: of the code, at least
// `rows`. A row's sums do not depend on it.
template <int kRows, typename T, typename W, typename OutputOf>
__device__ inline void AddUp(const Weight<W>& weight, const Rows<T>& r, int rows, const OutputOf& output_of,
                             float (&sums)[kRows][kOutputs]) {
  constexpr int kNumbers = kBytes / static_cast<int>(sizeof(W));
  const bool aligned = (reinterpret_cast<uintptr_t>(weight.values) | weight.inputs * sizeof(W)) % kBytes == 0;
  for (int64_t i = Lane() * kNumbers; i < weight.inputs; i += kWarp * kNumbers) {
    float w[kOutputs][kNumbers];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      LoadWeights(weight.values + output_of(o) * weight.inputs + i, weight.inputs - i, aligned, w[o]);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows) break;
#pragma unroll
      for (int j = 0; j < kNumbers; j += kRun<T>) {
        float v[kRun<T>];
        LoadRun(r.X(row) + i + j, weight.inputs - i - j, r.x_aligned, v);
#pragma unroll
        for (int k = 0; k < kRun<T>; ++k) {
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) sums[row][o] = fmaf(w[o][j + k], v[k], sums[row][o]);
        }
      }
    }
  }
}

// The number that Store would store.
template <typename T>
__device__ inline float RoundTo(float value) {
  return sizeof(T) == sizeof(float) ? value : FromBits(ToBits(value));
}

// An output of a row, from its whole sum.
template <typename T, typename W>
__device__ inline float Finish(const Weight<W>& weight, const T* bias, int64_t output, float sum) {
  const float scale = weight.scales == nullptr ? 1.0f : weight.scales[output];
  return fmaf(sum, scale, bias == nullptr ? 0.0f : Load(bias + output));
}

// The warp's outputs of `rows` rows, with the code of kRows.
template <int kRows, typename T, typename W>
__device__ inline void MultiplyRows(const Weight<W>& weight, const Rows<T>& r, int rows) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + WarpIndex()) * kOutputs;
  if (first >= weight.outputs) return;
  const int outputs = static_cast<int>(min(static_cast<int64_t>(kOutputs), weight.outputs - first));
  float sums[kRows][kOutputs] = {};
  AddUp(
      weight, r, rows, [&](int o) { return first + (o < outputs ? o : 0); }, sums);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row >= rows) break;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const float sum = WarpSum(sums[row][o]);
      if (Lane() != 0 || o >= outputs) continue;
      Store(r.Out(row) + first + o, Finish(weight, r.bias, first + o, sum));
    }
  }
}

// A warp computes kGatedOutputs outputs: each from a row of the weight's first half and one of its second.
constexpr int kGatedOutputs = kOutputs / 2;

template <typename T, typename W, int kRows>
__global__ void __launch_bounds__(kThreads)
    GatedProductKernel(const __grid_constant__ GatedMatMulArgs a, bool x_aligned) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + WarpIndex()) * kGatedOutputs;
  if (first >= a.dim) return;
  const int outputs = static_cast<int>(min(static_cast<int64_t>(kGatedOutputs), a.dim - first));
  const Weight<W> weight = {static_cast<const W*>(a.weight), a.scales, 2 * a.dim, a.inputs};
  const T* const bias = static_cast<const T*>(a.bias);
  const Rows<T> r = {static_cast<const T*>(a.x), bias, static_cast<T*>(a.out), a.x_stride, a.dim, x_aligned,
                     /*x_rows=*/nullptr,
                     /*out_rows=*/nullptr};
  const auto output_of = [&](int o) {
    const int of_half = o % kGatedOutputs;
    return first + (of_half < outputs ? of_half : 0) + (o < kGatedOutputs ? 0 : a.dim);
  };
  const int rows = static_cast<int>(a.rows);
  float sums[kRows][kOutputs] = {};
  AddUp(weight, r, rows, output_of, sums);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row >= rows) break;
#pragma unroll
    for (int o = 0; o < kGatedOutputs; ++o) {
      const float gate = WarpSum(sums[row][o]), up = WarpSum(sums[row][kGatedOutputs + o]);
      if (Lane() != 0 || o >= outputs) continue;
      const float rounded_gate = RoundTo<T>(Finish(weight, bias, first + o, gate));
      const float rounded_up = RoundTo<T>(Finish(weight, bias, a.dim + first + o, up));
      Store(r.Out(row) + first + o, Activated(a.activation, rounded_gate, rounded_up, SwigluConstants()));
    }
  }
}

template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads)
    Int8ProductKernel(const __grid_constant__ Int8MatMulArgs a, bool x_aligned) {
  const Weight<int8_t> weight = {a.weight.values, a.weight.scales, a.weight.outputs, a.weight.inputs};
  const Rows<T> rows = {static_cast<const T*>(a.x),
                        static_cast<const T*>(a.bias),
                        static_cast<T*>(a.out),
                        a.x_stride,
                        a.out_stride,
                        x_aligned,
                        /*x_rows=*/nullptr,
                        /*out_rows=*/nullptr};
  MultiplyRows<kRows>(weight, rows, static_cast<int>(a.rows));
}

// The pairs of an expert, in ascending order, and their rows of x, by one warp; returns how many.
__device__ inline int FindPairs(const ExpertMatMulArgs& a, int64_t expert, int* pairs, int* rows) {
  int count = 0;
  for (int64_t first = 0; first < a.pairs; first += kWarp) {
    const int64_t pair = first + Lane();
    const bool is_its = pair < a.pairs && a.chosen[pair] == expert;
    const unsigned its = __ballot_sync(kWholeWarp, is_its);
    const int place = count + __popc(its & ((1u << Lane()) - 1));
    if (is_its) {
      pairs[place] = static_cast<int>(pair);
      rows[place] = static_cast<int>(pair / a.pairs_per_row);
    }
    count += __popc(its);
  }
  return count;
}

// An expert's matrix and bias, and the rows of all pairs.
template <typename W>
__device__ inline Weight<W> WeightOf(const ExpertMatMulArgs& a, int64_t expert) {
  return {reinterpret_cast<const W*>(a.addresses[2 * expert]),
          reinterpret_cast<const float*>(a.addresses[2 * expert + 1]), a.outputs, a.inputs};
}
template <typename T>
__device__ inline Rows<T> RowsOf(const ExpertMatMulArgs& a, int64_t expert, bool x_aligned) {
  return {static_cast<const T*>(a.x),
          a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + expert * a.outputs,
          static_cast<T*>(a.out),
          a.x_stride,
          a.outputs,
          x_aligned,
          /*x_rows=*/nullptr,
          /*out_rows=*/nullptr};
}

// The expert's rows [begin, end) of the lists, a few at a time.
template <typename T, typename W>
__device__ inline void MultiplyPairs(const ExpertMatMulArgs& a, int64_t expert, bool x_aligned, const int* pairs,
                                     const int* x_rows, int begin, int end) {
  const Weight<W> weight = WeightOf<W>(a, expert);
  Rows<T> rows = RowsOf<T>(a, expert, x_aligned);
  for (int done = begin; done < end; done += kExpertRows) {
    rows.x_rows = x_rows + done;
    rows.out_rows = pairs + done;
    MultiplyRows<kExpertRows>(weight, rows, min(static_cast<int>(kExpertRows), end - done));
  }
}

// Whether an earlier pair chose the expert of this one. All warps find the same.
__device__ inline bool IsChosenBefore(const ExpertMatMulArgs& a, int64_t pair) {
  const int64_t expert = a.chosen[pair];
  for (int64_t first = 0; first < pair; first += kWarp) {
    const int64_t other = first + Lane();
    if (__ballot_sync(kWholeWarp, other < pair && a.chosen[other] == expert) != 0) return true;
  }
  return false;
}

// blockIdx = (kBlockOutputs outputs, expert). The block looks for the expert's pairs. With fewer pairs than experts,
// blockIdx.y is a pair, and the block has its expert if the pair is the first that chose it. So no block is launched
// for an expert without pairs. Where a token chooses 10 of 512 experts, as in qwen3_next, most have none.
template <typename T, typename W>
__global__ void __launch_bounds__(kThreads)
    ExpertProductKernel(const __grid_constant__ ExpertMatMulArgs a, bool x_aligned) {
  int* const count = reinterpret_cast<int*>(shared_memory);
  int* const pairs = count + 1;         // [pairs]
  int* const x_rows = pairs + a.pairs;  // [pairs]
  const bool by_pair = a.pairs < a.experts;
  if (by_pair && IsChosenBefore(a, blockIdx.y)) return;
  const int64_t expert = by_pair ? a.chosen[blockIdx.y] : static_cast<int64_t>(blockIdx.y);
  if (WarpIndex() == 0) {
    const int found = FindPairs(a, expert, pairs, x_rows);
    if (Lane() == 0) *count = found;
  }
  __syncthreads();
  MultiplyPairs<T, W>(a, expert, x_aligned, pairs, x_rows, 0, *count);
}

// Where an expert's pairs begin in the groups.
__device__ inline int FirstPair(const PairGroups& groups, int64_t expert) {
  return expert == 0 ? 0 : groups.ends[expert - 1];
}

// Multiplies pairs that are grouped, in float32, for which there are no tiles.
template <typename W>
__global__ void __launch_bounds__(kThreads)
    ExpertGroupKernel(const __grid_constant__ ExpertMatMulArgs a, bool x_aligned) {
  const int64_t expert = blockIdx.y;
  MultiplyPairs<float, W>(a, expert, x_aligned, a.groups.pairs, a.groups.x_rows, FirstPair(a.groups, expert),
                          a.groups.ends[expert]);
}

// Multiplies grouped pairs by tiles: blockIdx = (kTileOutputs outputs, expert).
template <typename W>
__global__ void __launch_bounds__(kTileThreads)
    ExpertTileKernel(const __grid_constant__ ExpertMatMulArgs a, bool x_aligned) {
  const int64_t expert = blockIdx.y;
  const int begin = FirstPair(a.groups, expert), end = a.groups.ends[expert];
  const Weight<W> weight = WeightOf<W>(a, expert);
  Rows<BFloat16> rows = RowsOf<BFloat16>(a, expert, x_aligned);
  for (int done = begin; done < end; done += kTileRows) {
    rows.x_rows = a.groups.x_rows + done;
    rows.out_rows = a.groups.pairs + done;
    MultiplyTile(weight, rows, min(kTileRows, end - done));
  }
}

// blockIdx = (kTileOutputs outputs, kTileRows rows).
__global__ void __launch_bounds__(kTileThreads)
    Int8TileKernel(const __grid_constant__ Int8MatMulArgs a, bool x_aligned) {
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kTileRows;
  const Weight<int8_t> weight = {a.weight.values, a.weight.scales, a.weight.outputs, a.weight.inputs};
  const Rows<BFloat16> rows = {static_cast<const BFloat16*>(a.x) + first * a.x_stride,
                               static_cast<const BFloat16*>(a.bias),
                               static_cast<BFloat16*>(a.out) + first * a.out_stride,
                               a.x_stride,
                               a.out_stride,
                               x_aligned,
                               /*x_rows=*/nullptr,
                               /*out_rows=*/nullptr};
  MultiplyTile(weight, rows, static_cast<int>(min(a.rows - first, static_cast<int64_t>(kTileRows))));
}

// An expert's block: it counts the pairs of the experts before, and writes its own pairs after theirs. Each warp has a
// stretch of the pairs, so they stay in order.
__global__ void __launch_bounds__(kThreads) GroupPairsKernel(const __grid_constant__ GroupPairsArgs a) {
  constexpr int kWarps = kThreads / kWarp;
  int* const before = reinterpret_cast<int*>(shared_memory);  // [kWarps]: pairs of the experts before
  int* const own = before + kWarps;                           // [kWarps]: of this one
  const int64_t expert = blockIdx.x;
  const int64_t stretch = (a.num_pairs + kThreads - 1) / kThreads * kWarp;
  const int64_t first = WarpIndex() * stretch;
  const int64_t last = min(first + stretch, a.num_pairs);
  int lower = 0, equal = 0;
  for (int64_t pair = first + Lane(); pair < last; pair += kWarp) {
    lower += a.chosen[pair] < expert;
    equal += a.chosen[pair] == expert;
  }
  lower = WarpSum(lower);
  equal = WarpSum(equal);
  if (Lane() == 0) {
    before[WarpIndex()] = lower;
    own[WarpIndex()] = equal;
  }
  __syncthreads();
  int place = 0, end = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    place += before[warp] + (warp < WarpIndex() ? own[warp] : 0);
    end += before[warp] + own[warp];
  }
  if (threadIdx.x == 0) a.groups.ends[expert] = end;
  for (int64_t pair = first + Lane(); pair - Lane() < last; pair += kWarp) {
    const bool is_its = pair < last && a.chosen[pair] == expert;
    const unsigned its = __ballot_sync(kWholeWarp, is_its);
    if (is_its) {
      const int at = place + __popc(its & ((1u << Lane()) - 1));
      a.groups.pairs[at] = static_cast<int>(pair);
      a.groups.x_rows[at] = static_cast<int>(pair / a.pairs_per_row);
    }
    place += __popc(its);
  }
}

// A block for a piece of each output's row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ExpandInt8Kernel(const __grid_constant__ Int8Weight weight, T* out, bool weight_aligned, bool out_aligned) {
  const int64_t output = blockIdx.x;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kBytes;
  if (i >= weight.inputs) return;
  const int64_t at = output * weight.inputs + i;
  const float scale = weight.scales[output];
  float v[kBytes];
  LoadWeights(weight.values + at, weight.inputs - i, weight_aligned, v);
#pragma unroll
  for (int j = 0; j < kBytes; ++j) v[j] *= scale;
#pragma unroll
  for (int j = 0; j < kBytes; j += kRun<T>) StoreRun(out + at + j, weight.inputs - i - j, out_aligned, v + j);
}

template <typename T, int kRows>
int LaunchRows(const Int8MatMulArgs& a, const LaunchParams& launch) {
  return Launch(Int8ProductKernel<T, kRows>, Grid(CeilDiv(a.weight.outputs, kBlockOutputs)), kThreads, 0, launch.stream,
                a, AreAligned<T>(a.x, a.x_stride));
}

template <typename T, typename W, int kRows>
int LaunchGated(const GatedMatMulArgs& a, const LaunchParams& launch) {
  return Launch(GatedProductKernel<T, W, kRows>, Grid(CeilDiv(a.dim, kThreads / kWarp * kGatedOutputs)), kThreads, 0,
                launch.stream, a, AreAligned<T>(a.x, a.x_stride));
}

}  // namespace

template <typename T>
int Int8MatMul(const Int8MatMulArgs& a, const LaunchParams& launch) {
  if (a.rows == 0) return kLaunched;
  if (a.rows == 1) return LaunchRows<T, 1>(a, launch);
  if (a.rows <= 4) return LaunchRows<T, 4>(a, launch);
  if (a.rows <= 8) return LaunchRows<T, 8>(a, launch);
  if (a.rows <= kInt8Rows) return LaunchRows<T, kInt8Rows>(a, launch);
  if (kTypeOf<T> != DType::kBFloat16 || a.rows > kInt8TileRows) return kNotCovered;
  return Launch(Int8TileKernel, Grid(CeilDiv(a.weight.outputs, kTileOutputs), CeilDiv(a.rows, kTileRows)), kTileThreads,
                kTileBytes, launch.stream, a, AreAligned<T>(a.x, a.x_stride));
}
BERTH_CUDA_ENTRY(Int8MatMul, Int8MatMulArgs)

template <typename T>
int GatedMatMul(const GatedMatMulArgs& a, const LaunchParams& launch) {
  if (a.rows == 0) return kLaunched;
  if (a.rows > (a.scales == nullptr ? kGatedRows : kGatedInt8Rows)) return kNotCovered;
  if (a.scales == nullptr) return a.rows == 1 ? LaunchGated<T, T, 1>(a, launch) : LaunchGated<T, T, 4>(a, launch);
  if (a.rows == 1) return LaunchGated<T, int8_t, 1>(a, launch);
  return a.rows <= 4 ? LaunchGated<T, int8_t, 4>(a, launch) : LaunchGated<T, int8_t, kGatedInt8Rows>(a, launch);
}
BERTH_CUDA_ENTRY(GatedMatMul, GatedMatMulArgs)

template <typename T>
int ExpandInt8(const ExpandInt8Args& a, const LaunchParams& launch) {
  const Int8Weight& w = a.weight;
  return Launch(ExpandInt8Kernel<T>, Grid(w.outputs, CeilDiv(w.inputs, kThreads * kBytes)), kThreads, 0, launch.stream,
                w, static_cast<T*>(a.out), AreAligned<int8_t>(w.values, w.inputs), AreAligned<T>(a.out, w.inputs));
}
BERTH_CUDA_ENTRY(ExpandInt8, ExpandInt8Args)

template <typename T>
int ExpertMatMul(const ExpertMatMulArgs& a, const LaunchParams& launch) {
  const bool x_aligned = AreAligned<T>(a.x, a.x_stride);
  if (a.groups.pairs == nullptr) {
    const int64_t room = (2 * a.pairs + 1) * static_cast<int64_t>(sizeof(int));
    const dim3 grid = Grid(CeilDiv(a.outputs, kBlockOutputs), a.pairs < a.experts ? a.pairs : a.experts);
    return Launch(a.is_int8 ? ExpertProductKernel<T, int8_t> : ExpertProductKernel<T, T>, grid, kThreads, room,
                  launch.stream, a, x_aligned);
  }
  const dim3 grid = Grid(CeilDiv(a.outputs, kBlockOutputs), a.experts);
  if (kTypeOf<T> == DType::kFloat32) {
    return Launch(a.is_int8 ? ExpertGroupKernel<int8_t> : ExpertGroupKernel<float>, grid, kThreads, 0, launch.stream, a,
                  x_aligned);
  }
  return Launch(a.is_int8 ? ExpertTileKernel<int8_t> : ExpertTileKernel<BFloat16>,
                Grid(CeilDiv(a.outputs, kTileOutputs), a.experts), kTileThreads, kTileBytes, launch.stream, a,
                x_aligned);
}
BERTH_CUDA_ENTRY(ExpertMatMul, ExpertMatMulArgs)

template <typename T>
int GroupPairs(const GroupPairsArgs& a, const LaunchParams& launch) {
  constexpr int64_t kRoom = 2 * kThreads / kWarp * static_cast<int64_t>(sizeof(int));
  return Launch(GroupPairsKernel, Grid(a.experts), kThreads, kRoom, launch.stream, a);
}
BERTH_CUDA_ENTRY(GroupPairs, GroupPairsArgs)

}  // namespace berth::ops::cuda
