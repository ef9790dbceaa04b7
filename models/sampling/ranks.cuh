// The order of tokens by their logits, and the lists of those that a cut leaves. Only for .cu files.
//
// No row is sorted. A first pass leaves the tokens that can matter in a list in global memory, which is usually so
// short that a multiprocessor's cache holds it. Among these a cut is found digit by digit of their ranks
// (RankReaching). What takes the `room` is called by all threads of the block with the same arguments, and ends with a
// barrier unless it says otherwise.
#ifndef BERTH_MODELS_SAMPLING_RANKS_CUH_
#define BERTH_MODELS_SAMPLING_RANKS_CUH_

#include "models/kernels/cuda/order.cuh"
#include "models/sampling/logits.cuh"

namespace berth::ops::cuda {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kDigitBits = 4;
inline constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kWarps, "a warp sums a digit's column");
inline constexpr int kMostValues = kDigits * kThreads / 2;

// Shared memory.
struct Room {
  double columns[kDigits * kThreads];  // [digit, thread]; else values and their running sums
  uint64_t ranks[kThreads];
  double digits[kDigits];
  Best best[kWarps];
  int counts[kWarps];
  uint64_t cut;
  int found;

  __device__ double* values() { return columns; }
  __device__ double* running() { return columns + kMostValues; }
};

// Tokens in ascending id, as many as the vocabulary has at most.
struct List {
  float* logits;
  int* ids;

  __device__ Logits<float> First(int n) const { return {logits, n, true, nullptr}; }
};

// What a block keeps of the row it works at; see SampleScratchBytes.
struct Scratch {
  double* weights;
  List kept;
  float* edited;  // none, if no row has edits

  // Where the weights lie, which come later.
  __device__ List Spare(int vocab) const {
    float* const logits = reinterpret_cast<float*>(weights);
    return {logits, reinterpret_cast<int*>(logits + (vocab + 3) / 4 * 4)};
  }
};

// Larger for the likelier: by the logit, then, where all i are below 2^index_bits, by the lower id. With no index_bits
// equal logits have equal ranks.
__device__ inline uint64_t RankOf(float x, int i, int index_bits) {
  const uint32_t mask = (1u << index_bits) - 1;
  return static_cast<uint64_t>(OrderedBits(x)) << index_bits | (~static_cast<uint32_t>(i) & mask);
}

// In whole digits.
__device__ inline int IndexBits(int n) {
  int bits = 0;
  while ((n - 1) >> bits != 0) bits += kDigitBits;
  return bits;
}

__device__ inline void ClearColumns(Room& room) {
#pragma unroll
  for (int d = 0; d < kDigits; ++d) room.columns[d * kThreads + threadIdx.x] = 0.0;
}
// The sum of each column, always in the same order, into room.digits.
__device__ inline void SumColumns(Room& room) {
  __syncthreads();
  double sum = 0.0;
#pragma unroll
  for (int t = 0; t < kThreads; t += kWarp) sum += room.columns[WarpIndex() * kThreads + t + Lane()];
  sum = WarpSum(sum);
  if (Lane() == 0) room.digits[WarpIndex()] = sum;
  __syncthreads();
}

// The rank at which the weight(i) of the tokens, added from the likeliest down, reaches the limit; should rounding
// leave none, the last with any weight. REQUIRES: the likeliest has some.
// Every thread adds to a column of its own for each digit, so that the order of the sum is fixed.
template <typename Weight>
__device__ inline uint64_t RankReaching(const Logits<float>& logits, int index_bits, const Weight& weight, double limit,
                                        Room& room) {
  uint64_t prefix = 0;
  double before = 0.0;  // the weight of what ranks above the prefix
  double* column = room.columns + threadIdx.x;
  for (int shift = 32 + index_bits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    ClearColumns(room);
    ForEach<kThreads>(logits, [&](int i, float x) {
      const uint64_t digits = RankOf(x, i, index_bits) >> shift;
      if (digits >> kDigitBits == prefix) column[static_cast<int>(digits % kDigits) * kThreads] += weight(i);
    });
    SumColumns(room);
    int digit = 0;
    double sum = before;
    for (int d = kDigits - 1; d >= 0; --d) {
      if (room.digits[d] == 0.0) continue;
      digit = d;
      before = sum;
      sum += room.digits[d];
      if (sum >= limit) break;
    }
    prefix = prefix << kDigitBits | static_cast<uint64_t>(digit);
  }
  __syncthreads();
  return prefix;
}

// The rank of the k-th likeliest token.
__device__ inline uint64_t KthRank(const Logits<float>& logits, int index_bits, int64_t k, Room& room) {
  return RankReaching(
      logits, index_bits, [](int) { return 1.0; }, static_cast<double>(k), room);
}

// At most the OrderedBits of the k-th largest logit: k threads have one at least as large in their shares. `largest`:
// of the thread's share.
__device__ inline uint32_t BoundOfTop(float largest, int64_t k, Room& room) {
  constexpr int kIndexBits = 12;
  static_assert(kThreads <= 1 << kIndexBits);
  if (k > kThreads) return 0;
  const int t = static_cast<int>(threadIdx.x);
  const uint64_t rank = RankOf(largest, t, kIndexBits);
  room.ranks[t] = rank;
  __syncthreads();
  int place = 0;
  for (int j = 0; j < kThreads; ++j) place += room.ranks[j] > rank ? 1 : 0;
  if (place == k - 1) room.cut = rank;
  __syncthreads();
  const auto bound = static_cast<uint32_t>(room.cut >> kIndexBits);
  __syncthreads();
  return bound;
}

// The warp's part of Collect: goes through [begin, end), and, with a list, puts down what it keeps from place `at` on.
// Returns the place that follows.
template <typename T, typename Keep>
__device__ inline int CollectPart(const Logits<T>& logits, const int* ids, int begin, int end, const Keep& keep, int at,
                                  const List* list) {
  constexpr int kAhead = 8;
  for (; begin < end; begin += kAhead * kWarp) {
    float v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = begin + a * kWarp + Lane();
      v[a] = i >= end ? 0.0f : logits.At(i);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = begin + a * kWarp + Lane();
      const bool is_kept = i < end && keep(v[a], i);
      const unsigned kept = __ballot_sync(kWholeWarp, is_kept ? 1 : 0);
      if (is_kept && list != nullptr) {
        const int place = at + __popc(kept & ((1u << Lane()) - 1));
        list->logits[place] = v[a];
        list->ids[place] = ids == nullptr ? i : ids[i];
      }
      at += __popc(kept);
    }
  }
  return at;
}

// The tokens i with keep(x[i], i), in ascending order, into the list. Returns how many. ids: of the tokens; null: token
// i has the id i.
template <typename T, typename Keep>
__device__ inline int Collect(const Logits<T>& logits, const int* ids, const Keep& keep, const List& list, Room& room) {
  const int part = (logits.n + kWarps - 1) / kWarps;
  const int begin = min(logits.n, WarpIndex() * part);
  const int end = min(logits.n, begin + part);
  const int count = CollectPart(logits, ids, begin, end, keep, 0, nullptr);
  if (Lane() == 0) room.counts[WarpIndex()] = count;
  __syncthreads();
  int first = 0;
  int total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == WarpIndex()) first = total;
    total += room.counts[w];
  }
  CollectPart(logits, ids, begin, end, keep, first, &list);
  __syncthreads();
  return total;
}

// With those whose OrderedBits are at least the bound.
template <typename T>
__device__ inline int CollectFrom(const Logits<T>& logits, const int* ids, uint32_t bound, const List& list,
                                  Room& room) {
  return Collect(
      logits, ids, [=](float x, int) { return OrderedBits(x) >= bound; }, list, room);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_SAMPLING_RANKS_CUH_
