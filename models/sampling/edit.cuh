// Bias, bans, penalties and forced tokens. Only for .cu files.
#ifndef BERTH_MODELS_SAMPLING_EDIT_CUH_
#define BERTH_MODELS_SAMPLING_EDIT_CUH_

#include "models/sampling/ranks.cuh"

namespace berth::ops::cuda {

__device__ inline bool InVocabulary(int32_t token, int n) { return token >= 0 && token < n; }

// A token may have several biases: the thread of the first adds them all, in order.
__device__ inline void AddBiases(const LogitEdits& edits, const TokenBias* biases, float* edited, int n) {
  for (int64_t e = threadIdx.x; e < edits.num_biases; e += kThreads) {
    const int32_t token = biases[e].token;
    bool is_first = InVocabulary(token, n);
    for (int64_t j = 0; j < e; ++j) is_first = is_first && biases[j].token != token;
    if (!is_first) continue;
    float x = edited[token];
    for (int64_t j = e; j < edits.num_biases; ++j) {
      if (biases[j].token != token) continue;
      x = edits.is_forced != 0 ? 0.0f : biases[j].bias == -INFINITY ? -INFINITY : x + biases[j].bias;
    }
    edited[token] = x;
  }
}

__device__ inline float Penalised(float x, const LogitEdits& edits, uint32_t outputs) {
  x = x > 0.0f ? x / edits.repetition_penalty : x * edits.repetition_penalty;
  if (outputs == 0) return x;
  x -= edits.frequency_penalty * static_cast<float>(outputs);
  return x - edits.presence_penalty;
}

// The model's logits, changed, into scratch.edited. Called by all threads of the block; ends with a barrier.
template <typename T>
__device__ inline void EditRow(const Logits<T>& model, const LogitEdits& edits, const char* tables,
                               const Scratch& scratch) {
  // By token: how often it comes in the prompt, times 2^32, and in the output.
  auto* const counts = reinterpret_cast<unsigned long long*>(scratch.weights);
  const auto* const history = reinterpret_cast<const int32_t*>(tables + edits.history);
  ForEachOfAll<kThreads>(model, [&](int i, float x, bool) {
    scratch.edited[i] = edits.is_forced != 0 ? -INFINITY : x;
    if (edits.num_history > 0) counts[i] = 0;
  });
  __syncthreads();
  AddBiases(edits, reinterpret_cast<const TokenBias*>(tables + edits.biases), scratch.edited, model.n);
  for (int64_t i = threadIdx.x; i < edits.num_history; i += kThreads) {
    if (InVocabulary(history[i], model.n)) atomicAdd(&counts[history[i]], i < edits.num_prompt ? 1ull << 32 : 1ull);
  }
  __syncthreads();
  // The thread that takes a token's counts changes its logit.
  for (int64_t i = threadIdx.x; i < edits.num_history; i += kThreads) {
    if (!InVocabulary(history[i], model.n)) continue;
    const unsigned long long count = atomicExch(&counts[history[i]], 0ull);
    if (count == 0) continue;
    scratch.edited[history[i]] = Penalised(scratch.edited[history[i]], edits, static_cast<uint32_t>(count));
  }
  __syncthreads();
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_SAMPLING_EDIT_CUH_
