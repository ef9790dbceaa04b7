// The choice of tokens, greedy or drawn, with logprobs and changed logits: a block for each row of logits, in turns.
#include "models/sampling/draw.cuh"
#include "models/sampling/edit.cuh"
#include "models/sampling/logprobs.cuh"

namespace berth::ops::cuda {
namespace {

__device__ inline Scratch ScratchOf(const SampleArgs& a, int64_t block) {
  const int64_t n = (a.vocab + 3) / 4 * 4;
  const int64_t bytes = kScratchBytes + (a.has_edits ? kEditedBytes : 0);
  double* weights = reinterpret_cast<double*>(static_cast<char*>(a.scratch) + block * n * bytes);
  float* logits = reinterpret_cast<float*>(weights + n);
  return {weights, {logits, reinterpret_cast<int*>(logits + n)}, logits + 2 * n};
}

// The token, if there is one, else why not.
template <typename T>
__device__ inline int Choose(const Logits<T>& logits, const Best& best, float largest, const SampleArgs& a,
                             const SampleParams& params, const Scratch& scratch, Room& room) {
  if (!best.IsGood()) return best.IsHidden() ? a.masks.no_allowed_token : a.bad_token;
  if (params.inverse_temperature == 0.0) return best.id;
  return Draw(logits, best.logit, largest, params, scratch, room);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs a, bool aligned) {
  Room& room = *reinterpret_cast<Room*>(shared_memory);
  const Scratch scratch = ScratchOf(a, blockIdx.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const SampleParams params = a.params[row];
    const Logits<T> logits = {static_cast<const T*>(a.logits) + row * a.stride, static_cast<int>(a.vocab), aligned,
                              MaskOf(a.masks, row)};
    float largest;
    Best best = BestOf<kThreads>(logits, room.best, &largest);
    int token;
    if (params.edits < 0 || best.met != Best::kFinite) {
      token = Choose(logits, best, largest, a, params, scratch, room);
    } else {
      EditRow(logits, a.edits[params.edits], a.tables, scratch);
      const Logits<float> edited = {scratch.edited, logits.n, true, logits.mask};
      best = BestOf<kThreads>(edited, room.best, &largest);
      token = Choose(edited, best, largest, a, params, scratch, room);
    }
    if (threadIdx.x == 0) a.tokens[row] = token;
    __syncthreads();  // what follows uses the same room
    if (params.num_top >= 0 && token >= 0) {
      FillLogprobs(logits, token, params, scratch, a.logprobs + params.logprobs, room);
    }
  }
}

}  // namespace

template <typename T>
int Sample(const SampleArgs& a, const LaunchParams& launch) {
  if (a.vocab > int64_t{kMostValues} * kSumBlock) return kNotCovered;
  const int64_t blocks = a.rows < a.num_scratch ? a.rows : a.num_scratch;
  return Launch(SampleKernel<T>, Grid(blocks), kThreads, sizeof(Room), launch.stream, a,
                AreAligned<T>(a.logits, a.stride));
}
BERTH_CUDA_ENTRY(Sample, SampleArgs)

}  // namespace berth::ops::cuda
