// Logprobs of the chosen token and of the likeliest ones. Only for .cu files.
#ifndef BERTH_MODELS_SAMPLING_LOGPROBS_CUH_
#define BERTH_MODELS_SAMPLING_LOGPROBS_CUH_

#include "models/sampling/exp.h"
#include "models/sampling/ranks.cuh"

namespace berth::ops::cuda {

// The log of the sum of exp(x).
template <typename T>
__device__ inline double LogSum(const Logits<T>& logits, float max, Room& room) {
  const double top = max;
  double sum = 0.0;
  ForEach<kThreads>(logits, [&](int, float x) { sum += ExpNonPositive(x - top); });
  sum = WarpSum(sum);
  if (Lane() == 0) room.digits[WarpIndex()] = sum;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; w < kWarps; ++w) total += room.digits[w];
  __syncthreads();
  return top + log(total);
}

// The k likeliest tokens that are possible, in order, into `top`, whose entries were cleared. `largest`: of the
// thread's share. REQUIRES: 0 < k <= min(logits.n, kMostTop).
template <typename T>
__device__ inline void FillTop(const Logits<T>& logits, float largest, int k, double log_sum, const Scratch& scratch,
                               LogprobEntry* top, Room& room) {
  static_assert(kMostTop <= kMostValues);
  const List spare = scratch.Spare(logits.n);
  List list = scratch.kept;
  int count = CollectFrom(logits, nullptr, BoundOfTop(largest, k, room), list, room);
  if (count > kMostTop) {
    const int index_bits = IndexBits(count);
    const Logits<float> many = list.First(count);
    const uint64_t kth = KthRank(many, index_bits, k, room);
    count = Collect(
        many, list.ids, [=](float x, int i) { return RankOf(x, i, index_bits) >= kth; }, spare, room);
    list = spare;
  }
  auto* const ranks = reinterpret_cast<uint64_t*>(room.columns);
  const int index_bits = IndexBits(count);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
    ranks[i] = RankOf(list.logits[i], i, index_bits);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    int place = 0;
    for (int j = 0; j < count; ++j) place += ranks[j] > ranks[i] ? 1 : 0;
    const float x = list.logits[i];
    if (place < k && x > -INFINITY) top[place] = {list.ids[i], static_cast<float>(x - log_sum)};
  }
  __syncthreads();
}

// The logprobs of a row whose token is chosen; see SampleArgs. `allowed`: the model's logits, with the row's mask.
template <typename T>
__device__ inline void FillLogprobs(const Logits<T>& allowed, int token, const SampleParams& params,
                                    const Scratch& scratch, LogprobEntry* entries, Room& room) {
  const Logits<T> model = {allowed.x, allowed.n, allowed.aligned, nullptr};
  const Logits<T> shown = params.ranks_allowed != 0 ? allowed : model;
  const Logits<T> summed = params.sums_allowed != 0 ? allowed : model;
  for (int i = static_cast<int>(threadIdx.x); i < params.num_top; i += kThreads) entries[1 + i] = {-1, 0.0f};
  __syncthreads();
  float largest;
  const float max = BestOf<kThreads>(shown, room.best, &largest).logit;
  __syncthreads();
  double log_sum = 0.0;  // where the model gives none of them a chance
  if (max > -INFINITY) {
    float unused;
    log_sum =
        LogSum(summed, summed.mask == shown.mask ? max : BestOf<kThreads>(summed, room.best, &unused).logit, room);
    const int k = static_cast<int>(params.num_top < allowed.n ? params.num_top : allowed.n);
    if (k > 0) FillTop(shown, largest, k, log_sum, scratch, entries + 1, room);
  }
  if (threadIdx.x == 0) entries[0] = {token, static_cast<float>(Load(model.x + token) - log_sum)};
  __syncthreads();
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_SAMPLING_LOGPROBS_CUH_
