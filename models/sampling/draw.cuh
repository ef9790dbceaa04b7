// The draw of a token. Only for .cu files.
//
// The rules are those of models/sampling/sampler.h. The weights have the bits of the CPU's (nvcc fuses nothing here,
// see models/ops/BUILD), and so have their sums, with one exception. The sums by which top_p cuts among more than 256
// tokens are added in another order, which changes them by about 1e-15.
//
// What top_p or min_p keep lies within some nats of the likeliest token. A pass over the row sums its weights, and
// those of each nat (NucleusOf), which gives a bound that no kept token lies below. The tokens from there on go into a
// list, and all else happens among them.
#ifndef BERTH_MODELS_SAMPLING_DRAW_CUH_
#define BERTH_MODELS_SAMPLING_DRAW_CUH_

#include "models/sampling/exp.h"
#include "models/sampling/ranks.cuh"

namespace berth::ops::cuda {

inline constexpr int kSumLanes = 8;  // of a block of weights, as row_ops.cc adds them
inline constexpr int kSumBlock = 512;
static_assert(kSumBlock == kThreads, "a thread has a weight of the block that holds the draw");

__device__ inline int NumSumBlocks(int n) { return (n + kSumBlock - 1) / kSumBlock; }

struct Weight {
  double top;  // the largest logit
  double inverse_temperature;

  __device__ double Power(float x) const { return (x - top) * inverse_temperature; }
  __device__ double operator()(float x) const { return ExpNonPositive(Power(x)); }
};

// The sum of each block of weight(i), in the order of row_ops.cc's Sum.
template <typename WeightAt>
__device__ inline void SumBlocks(int n, const WeightAt& weight, double* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int num_blocks = NumSumBlocks(n);
  for (int first = 0; first < num_blocks; first += kThreads / kSumLanes) {
    const int block = first + static_cast<int>(threadIdx.x) / kSumLanes;
    const int end = min(n, (block + 1) * kSumBlock);
    double sum = 0.0;
#pragma unroll 8
    for (int i = block * kSumBlock + lane; i < end; i += kSumLanes) sum += weight(i);
    sum += __shfl_xor_sync(kWholeWarp, sum, 4);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    if (lane == 0 && block < num_blocks) sums[block] = sum;
  }
  __syncthreads();
}

// The running sums of the first n of room.values(), from `start` on, into room.running(). Returns the last, which all
// threads have read only after the next barrier.
__device__ inline double Accumulate(int n, double start, Room& room) {
  if (threadIdx.x == 0) {
    const double* __restrict__ values = room.values();
    double* __restrict__ running = room.running();
    double sum = start;
    int last = 0;
#pragma unroll 8
    for (int i = 0; i < n; ++i) {
      sum += values[i];
      running[i] = sum;
      last = values[i] != 0.0 ? i : last;
    }
    room.found = last;
  }
  __syncthreads();
  return room.running()[n - 1];
}

// After Accumulate: the first value whose running sum `reaches`; should rounding leave none, the last that is not 0.
template <typename Reaches>
__device__ inline int FirstReaching(int n, const Reaches& reaches, Room& room) {
  const double* running = room.running();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    if (reaches(running[i]) && (i == 0 || !reaches(running[i - 1]))) room.found = i;
  }
  __syncthreads();
  const int found = room.found;
  __syncthreads();
  return found;
}

// As RankReaching, of few: they are put in order, and their weights added in it. REQUIRES: n <= kThreads.
__device__ inline uint64_t RankReachingOfFew(const Logits<float>& logits, int index_bits, const double* weights,
                                             double limit, Room& room) {
  const int i = static_cast<int>(threadIdx.x);
  const bool present = i < logits.n;
  const uint64_t rank = present ? RankOf(logits.x[i], i, index_bits) : 0;
  room.ranks[i] = rank;
  __syncthreads();
  int place = 0;
  if (present) {
    for (int j = 0; j < logits.n; ++j) place += room.ranks[j] > rank ? 1 : 0;
    room.values()[place] = weights[i];
  }
  __syncthreads();
  Accumulate(logits.n, 0.0, room);
  const int found = FirstReaching(
      logits.n, [=](double sum) { return sum >= limit; }, room);
  if (present && place == found) room.cut = rank;
  __syncthreads();
  const uint64_t cut = room.cut;
  __syncthreads();
  return cut;
}

// Clears the weights that top_p and min_p do not keep. `limit`: the weight that top_p keeps.
__device__ inline void Cut(const Logits<float>& logits, const SampleParams& params, double limit, double* weights,
                           Room& room) {
  const int index_bits = IndexBits(logits.n);
  uint64_t cut = 0;
  if (params.top_p < 1.0) {
    cut = logits.n <= kThreads ? RankReachingOfFew(logits, index_bits, weights, limit, room)
                               : RankReaching(
                                     logits, index_bits, [=](int i) { return weights[i]; }, limit, room);
  }
  ForEach<kThreads>(logits, [&](int i, float x) {
    if (RankOf(x, i, index_bits) < cut || weights[i] < params.min_p) weights[i] = 0.0;
  });
  __syncthreads();
}

// Where in the weights a draw falls: a block of them, and what lies before it.
struct Fall {
  double target;
  double before;
  int block;
};

// REQUIRES: room.values() has the sums of n weights' blocks.
__device__ inline Fall FallOf(int n, double uniform, Room& room) {
  const int num_blocks = NumSumBlocks(n);
  const double target = uniform * Accumulate(num_blocks, 0.0, room);
  const int block = FirstReaching(
      num_blocks, [=](double sum) { return sum > target; }, room);
  return {target, block == 0 ? 0.0 : room.running()[block - 1], block};
}

// The index that the draw falls on. REQUIRES: room.values() has the weights of the block.
__device__ inline int PickInBlock(int n, const Fall& fall, Room& room) {
  const int first = fall.block * kSumBlock;
  const int count = min(n - first, kSumBlock);
  Accumulate(count, fall.before, room);
  return first + FirstReaching(
                     count, [=](double sum) { return sum > fall.target; }, room);
}

// The index among n that `uniform` of the whole weight falls on.
template <typename WeightAt>
__device__ inline int Pick(int n, const WeightAt& weight, double uniform, Room& room) {
  SumBlocks(n, weight, room.values());
  const Fall fall = FallOf(n, uniform, room);
  const int i = fall.block * kSumBlock + static_cast<int>(threadIdx.x);
  if (i < n) room.values()[threadIdx.x] = weight(i);
  __syncthreads();
  return PickInBlock(n, fall, room);
}

// The first of n ascending ids that is at least `id`.
__device__ inline int PlaceOf(int id, const int* ids, int n) {
  int begin = 0;
  for (int end = n; begin < end;) {
    const int middle = begin + (end - begin) / 2;
    if (ids[middle] < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// As Pick, where of n weights only `count` are not 0, whose indices are `ids`. The sums have the same bits.
__device__ inline int PickAmong(int n, const int* ids, const double* weights, int count, double uniform, Room& room) {
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int num_blocks = NumSumBlocks(n);
  for (int first = 0; first < num_blocks; first += kThreads / kSumLanes) {
    const int block = first + static_cast<int>(threadIdx.x) / kSumLanes;
    double sum = 0.0;
    for (int i = PlaceOf(block * kSumBlock, ids, count); i < count && ids[i] < (block + 1) * kSumBlock; ++i) {
      if (ids[i] % kSumLanes == lane) sum += weights[i];
    }
    sum += __shfl_xor_sync(kWholeWarp, sum, 4);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    if (lane == 0 && block < num_blocks) room.values()[block] = sum;
  }
  __syncthreads();
  const Fall fall = FallOf(n, uniform, room);
  const int first = fall.block * kSumBlock;
  room.values()[threadIdx.x] = 0.0;
  __syncthreads();
  const int i = PlaceOf(first, ids, count) + static_cast<int>(threadIdx.x);
  if (i < count && ids[i] < first + kSumBlock) room.values()[ids[i] - first] = weights[i];
  __syncthreads();
  return PickInBlock(n, fall, room);
}

// At most the OrderedBits of every logit from `power` on: weight.Power does not fall as logits rise.
__device__ inline uint32_t BoundOfPower(const Weight& weight, double power) {
  uint32_t low = 0;
  uint32_t high = OrderedBits(static_cast<float>(weight.top));
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (weight.Power(FromOrderedBits(middle)) >= power) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// What top_p keeps.
struct Nucleus {
  double limit;    // its weight
  uint32_t bound;  // of its logits' OrderedBits
};

// `sums`: for a number for each of the row's blocks.
template <typename T>
__device__ inline Nucleus NucleusOf(const Logits<T>& logits, const Weight& weight, double top_p, double* sums,
                                    Room& room) {
  // A sum of 2^21 weights in any order is that of any other order within 2^-32.
  constexpr double kMargin = 1 + 1e-9;
  ClearColumns(room);
  double* column = room.columns + threadIdx.x;
  const auto add = [&](int i) {
    const double power = weight.Power(logits.At(i));
    const double w = ExpNonPositive(power);
    if (power > -kDigits) column[static_cast<int>(-power) * kThreads] += w;  // a column for each nat
    return w;
  };
  SumBlocks(logits.n, add, sums);
  SumColumns(room);
  const int num_blocks = NumSumBlocks(logits.n);
  for (int i = static_cast<int>(threadIdx.x); i < num_blocks; i += kThreads) room.values()[i] = sums[i];
  __syncthreads();
  const double limit = top_p * Accumulate(num_blocks, 0.0, room);
  double sum = 0.0;
  for (int d = 0; d < kDigits; ++d) {
    sum += room.digits[d];
    if (sum >= limit * kMargin) return {limit, BoundOfPower(weight, -(d + 1))};
  }
  return {limit, 0};
}

// Draws from the top_k, which lie in scratch.kept.
__device__ inline int DrawOfCandidates(int count, const Weight& weight, const SampleParams& params,
                                       const Scratch& scratch, Room& room) {
  const Logits<float> logits = scratch.kept.First(count);
  double* const weights = scratch.weights;
  ForEach<kThreads>(logits, [&](int i, float x) { weights[i] = weight(x); });
  __syncthreads();
  const auto weight_at = [=](int i) { return weights[i]; };
  if (params.top_p < 1.0 || params.min_p > 0.0) {
    SumBlocks(count, weight_at, room.values());
    const double limit = params.top_p * Accumulate(NumSumBlocks(count), 0.0, room);
    __syncthreads();
    Cut(logits, params, limit, weights, room);
  }
  return scratch.kept.ids[Pick(count, weight_at, params.uniform, room)];
}

// Draws from what top_p and min_p keep.
template <typename T>
__device__ inline int DrawOfNucleus(const Logits<T>& logits, const Weight& weight, const SampleParams& params,
                                    const Scratch& scratch, Room& room) {
  constexpr double kMargin = 1e-9;  // ExpNonPositive's error, and log's
  double* const weights = scratch.weights;
  Nucleus nucleus = {0.0, 0};
  if (params.top_p < 1.0) {
    nucleus = NucleusOf(logits, weight, params.top_p, weights, room);
    __syncthreads();
  }
  if (params.min_p > 0.0) nucleus.bound = max(nucleus.bound, BoundOfPower(weight, log(params.min_p) - kMargin));
  const int count = CollectFrom(logits, nullptr, nucleus.bound, scratch.kept, room);
  const Logits<float> kept = scratch.kept.First(count);
  ForEach<kThreads>(kept, [&](int i, float x) { weights[i] = weight(x); });
  __syncthreads();
  Cut(kept, params, nucleus.limit, weights, room);
  if (count == logits.n) {
    return Pick(
        count, [=](int i) { return weights[i]; }, params.uniform, room);
  }
  return PickAmong(logits.n, scratch.kept.ids, weights, count, params.uniform, room);
}

// `max`: the largest logit; `largest`: of the thread's share.
template <typename T>
__device__ inline int Draw(const Logits<T>& logits, float max, float largest, const SampleParams& params,
                           const Scratch& scratch, Room& room) {
  const Weight weight = {max, params.inverse_temperature};
  if (params.top_k > 0 && params.top_k < logits.n) {
    const List spare = scratch.Spare(logits.n);
    const int few = CollectFrom(logits, nullptr, BoundOfTop(largest, params.top_k, room), spare, room);
    const auto kth = static_cast<uint32_t>(KthRank(spare.First(few), 0, params.top_k, room));
    const int count = CollectFrom(spare.First(few), spare.ids, kth, scratch.kept, room);
    return DrawOfCandidates(count, weight, params, scratch, room);
  }
  if (params.top_p < 1.0 || params.min_p > 0.0) return DrawOfNucleus(logits, weight, params, scratch, room);
  return Pick(
      logits.n, [&](int i) { return weight(logits.At(i)); }, params.uniform, room);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_SAMPLING_DRAW_CUH_
