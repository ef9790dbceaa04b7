// The choice of tokens, greedy or drawn: a block for each row of logits, in turns. The rules are those of
// models/sampling/sampler.h. The weights have the same bits (nvcc fuses nothing here, see BUILD), and so have their
// sums, with one exception. The sums by which top_p cuts among more than 256 tokens are added in another order, which
// changes them by about 1e-15.
//
// No sort: a cut is found digit by digit of the tokens' ranks (RankReaching). What takes the `room` is called by all
// threads of the block with the same arguments, and ends with a barrier unless it says otherwise.
#include "models/sampling/exp.h"
#include "models/sampling/logits.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigitBits = 4;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kWarps, "a warp sums a digit's column");
constexpr int kSumLanes = 8;  // of a block of weights, as row_ops.cc adds them
constexpr int kSumBlock = 512;
static_assert(kSumBlock == kThreads, "a thread loads a weight of the block that holds the draw");
constexpr int kMostValues = kDigits * kThreads / 2;

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

// What a block keeps of the row it works at; see SampleScratchBytes.
struct Scratch {
  double* weights;
  float* logits;
  int* ids;
};

__device__ inline Scratch ScratchOf(const SampleArgs& a, int64_t block) {
  const int64_t n = (a.vocab + 3) / 4 * 4;
  double* weights = static_cast<double*>(a.scratch) + block * 2 * n;
  float* logits = reinterpret_cast<float*>(weights + n);
  return {weights, logits, reinterpret_cast<int*>(logits + n)};
}

// Larger for larger x, the same for equals. REQUIRES: x is not NaN.
__device__ inline uint32_t OrderedBits(float x) {
  const uint32_t bits = x == 0.0f ? 0u : __float_as_uint(x);  // -0 equals 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

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

// The rank at which the weight(i) of the tokens, added from the likeliest down, reaches the limit; should rounding
// leave none, the last with any weight. REQUIRES: the likeliest has some.
// Every thread adds to a column of its own for each digit, so that the order of the sum is fixed.
template <typename Weight>
__device__ inline uint64_t RankReaching(const Logits& logits, int index_bits, const Weight& weight, double limit,
                                        Room& room) {
  uint64_t prefix = 0;
  double before = 0.0;  // the weight of what ranks above the prefix
  double* column = room.columns + threadIdx.x;
  for (int shift = 32 + index_bits - kDigitBits; shift >= 0; shift -= kDigitBits) {
#pragma unroll
    for (int d = 0; d < kDigits; ++d) column[d * kThreads] = 0.0;
    ForEach<kThreads>(logits, [&](int i, float x) {
      const uint64_t digits = RankOf(x, i, index_bits) >> shift;
      if (digits >> kDigitBits == prefix) column[static_cast<int>(digits % kDigits) * kThreads] += weight(i);
    });
    __syncthreads();
    double of_digit = 0.0;
#pragma unroll
    for (int t = 0; t < kThreads; t += kWarp) of_digit += room.columns[WarpIndex() * kThreads + t + Lane()];
    of_digit = WarpSum(of_digit);
    if (Lane() == 0) room.digits[WarpIndex()] = of_digit;
    __syncthreads();
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

// The warp's part of Collect: goes through [begin, end), and, with a scratch, puts down what it keeps from place `at`
// on. Returns the place that follows.
__device__ inline int CollectPart(const Logits& logits, int begin, int end, uint32_t bound, int at,
                                  const Scratch* scratch) {
  constexpr int kAhead = 8;
  for (; begin < end; begin += kAhead * kWarp) {
    float v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = begin + a * kWarp + Lane();
      v[a] = i >= end ? 0.0f : (logits.BitsFrom(i) & 1) != 0 ? logits.x[i] : -INFINITY;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = begin + a * kWarp + Lane();
      const bool keep = i < end && OrderedBits(v[a]) >= bound;
      const unsigned kept = __ballot_sync(kWholeWarp, keep ? 1 : 0);
      if (keep && scratch != nullptr) {
        const int place = at + __popc(kept & ((1u << Lane()) - 1));
        scratch->logits[place] = v[a];
        scratch->ids[place] = i;
      }
      at += __popc(kept);
    }
  }
  return at;
}

// The tokens whose OrderedBits are at least the bound, in ascending id, into the scratch. Returns how many.
__device__ inline int Collect(const Logits& logits, uint32_t bound, const Scratch& scratch, Room& room) {
  const int part = (logits.n + kWarps - 1) / kWarps;
  const int begin = min(logits.n, WarpIndex() * part);
  const int end = min(logits.n, begin + part);
  const int count = CollectPart(logits, begin, end, bound, 0, nullptr);
  if (Lane() == 0) room.counts[WarpIndex()] = count;
  __syncthreads();
  int first = 0;
  int total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == WarpIndex()) first = total;
    total += room.counts[w];
  }
  CollectPart(logits, begin, end, bound, first, &scratch);
  __syncthreads();
  return total;
}

__device__ inline int NumSumBlocks(int n) { return (n + kSumBlock - 1) / kSumBlock; }

// The sum of each block of weights, in the order of row_ops.cc's Sum, into room.values().
__device__ inline void SumBlocks(const double* weights, int n, Room& room) {
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int num_blocks = NumSumBlocks(n);
  for (int first = 0; first < num_blocks; first += kThreads / kSumLanes) {
    const int block = first + static_cast<int>(threadIdx.x) / kSumLanes;
    const int end = min(n, (block + 1) * kSumBlock);
    double sum = 0.0;
#pragma unroll 8
    for (int i = block * kSumBlock + lane; i < end; i += kSumLanes) sum += weights[i];
    sum += __shfl_xor_sync(kWholeWarp, sum, 4);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    if (lane == 0 && block < num_blocks) room.values()[block] = sum;
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
__device__ inline uint64_t RankReachingOfFew(const Logits& logits, int index_bits, const double* weights, double limit,
                                             Room& room) {
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

// Clears the weights that top_p and min_p do not keep.
__device__ inline void Cut(const Logits& logits, const SampleParams& params, double* weights, Room& room) {
  const int index_bits = IndexBits(logits.n);
  uint64_t cut = 0;
  if (params.top_p < 1.0) {
    SumBlocks(weights, logits.n, room);
    const double limit = params.top_p * Accumulate(NumSumBlocks(logits.n), 0.0, room);
    __syncthreads();
    cut = logits.n <= kThreads ? RankReachingOfFew(logits, index_bits, weights, limit, room)
                               : RankReaching(
                                     logits, index_bits, [=](int i) { return weights[i]; }, limit, room);
  }
  ForEach<kThreads>(logits, [&](int i, float x) {
    if (RankOf(x, i, index_bits) < cut || weights[i] < params.min_p) weights[i] = 0.0;
  });
  __syncthreads();
}

// The index that `uniform` of the whole weight falls on.
__device__ inline int Pick(const double* weights, int n, double uniform, Room& room) {
  SumBlocks(weights, n, room);
  const int num_blocks = NumSumBlocks(n);
  const double target = uniform * Accumulate(num_blocks, 0.0, room);
  const auto passes = [=](double sum) { return sum > target; };
  const int block = FirstReaching(num_blocks, passes, room);
  const double before = block == 0 ? 0.0 : room.running()[block - 1];
  const int first = block * kSumBlock;
  const int count = min(n - first, kSumBlock);
  if (static_cast<int>(threadIdx.x) < count) room.values()[threadIdx.x] = weights[first + threadIdx.x];
  __syncthreads();
  Accumulate(count, before, room);
  return first + FirstReaching(count, passes, room);
}

__device__ inline int Draw(Logits logits, float max, const SampleParams& params, const Scratch& scratch, Room& room) {
  const bool of_candidates = params.top_k > 0 && params.top_k < logits.n;
  if (of_candidates) {
    const uint64_t kth = RankReaching(
        logits, 0, [](int) { return 1.0; }, static_cast<double>(params.top_k), room);
    logits = {scratch.logits, Collect(logits, static_cast<uint32_t>(kth), scratch, room), true, nullptr};
  }
  const double top = max;
  ForEach<kThreads>(
      logits, [&](int i, float x) { scratch.weights[i] = ExpNonPositive((x - top) * params.inverse_temperature); });
  __syncthreads();
  if (params.top_p < 1.0 || params.min_p > 0.0) Cut(logits, params, scratch.weights, room);
  const int picked = Pick(scratch.weights, logits.n, params.uniform, room);
  return of_candidates ? scratch.ids[picked] : picked;
}

__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs a, bool aligned) {
  Room& room = *reinterpret_cast<Room*>(shared_memory);
  const Scratch scratch = ScratchOf(a, blockIdx.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const SampleParams params = a.params[row];
    const Logits logits = {a.logits + row * a.stride, static_cast<int>(a.vocab), aligned, MaskOf(a.masks, row)};
    const Best best = BestOf<kThreads>(logits, room.best);
    int token = best.IsHidden() ? a.masks.no_allowed_token : a.bad_token;
    if (best.IsGood()) {
      token = params.inverse_temperature == 0.0 ? best.id : Draw(logits, best.logit, params, scratch, room);
    }
    if (threadIdx.x == 0) a.tokens[row] = token;
    __syncthreads();  // the next row's is the same room
  }
}

}  // namespace

int Sample(const SampleArgs& a, const LaunchParams& launch) {
  if (a.vocab > int64_t{kMostValues} * kSumBlock) return kNotCovered;
  const int64_t blocks = a.rows < a.num_scratch ? a.rows : a.num_scratch;
  return Launch(SampleKernel, Grid(blocks), kThreads, sizeof(Room), launch.stream, a,
                AreAligned<float>(a.logits, a.stride));
}

}  // namespace berth::ops::cuda
