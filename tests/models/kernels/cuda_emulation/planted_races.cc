#include "tests/models/kernels/cuda_emulation/planted_races.h"

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <numeric>

#include "models/kernels/cuda/device.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kBlocks = 3;
constexpr int kTiles = 4;

// What every kernel gets: `in` [kTiles * kThreads * 4], `out` [kBlocks * kThreads], and zeros.
struct Memory {
  const float* in;
  float* out;
  int* counters;  // [kBlocks * kThreads]
};

__device__ inline float* Shared() { return reinterpret_cast<float*>(shared_memory); }
__device__ inline int Thread() { return static_cast<int>(threadIdx.x); }
__device__ inline float* Out(const Memory& m) { return m.out + blockIdx.x * kThreads + Thread(); }
__device__ inline int Across(int thread) { return (thread + kWarp) % kThreads; }
__device__ inline int Beside(int thread) { return thread ^ 1; }

// In each, kCorrect is what the race lacks.
template <bool kCorrect>
__global__ void NoBarrierBeforeReading(Memory m) {
  Shared()[Thread()] = m.in[Thread()];
  if (kCorrect) __syncthreads();
  *Out(m) = Shared()[Across(Thread())];
}

template <bool kCorrect>
__global__ void NoBarrierBeforeTheRoomIsUsedAgain(Memory m) {
  const float sum = BlockSum(m.in[Thread()], Shared());
  if (kCorrect) __syncthreads();
  *Out(m) = BlockSum(sum, Shared());
}

template <bool kCorrect>
__global__ void NoBarrierAtALoopsEnd(Memory m) {
  float sum = 0;
  for (int tile = 0; tile < kTiles; ++tile) {
    Shared()[Thread()] = m.in[tile * kThreads + Thread()];
    __syncthreads();
    sum += Shared()[Across(Thread())];
    if (kCorrect) __syncthreads();
  }
  *Out(m) = sum;
}

template <bool kCorrect>
__global__ void ABarrierOfTheWarpForTheBlock(Memory m) {
  Shared()[Thread()] = m.in[Thread()];
  if (kCorrect) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  *Out(m) = Shared()[Across(Thread())];
}

template <bool kCorrect>
__global__ void NoBarrierInAWarp(Memory m) {
  Shared()[Thread()] = m.in[Thread()];
  if (kCorrect) __syncwarp();
  *Out(m) = Shared()[Beside(Thread())];
}

template <bool kCorrect>
__global__ void OneThreadReadsBeforeAnExchange(Memory m) {
  float sum = 0;
  Shared()[Thread()] = m.in[Thread()];
  if (!kCorrect && Lane() == 0) sum = Shared()[Thread() + 1];
  sum = WarpSum(sum + 1);
  if (kCorrect && Lane() == 0) sum += Shared()[Thread() + 1];
  *Out(m) = sum;
}

template <bool kCorrect>
__global__ void ABlockReadsWhatAnotherWrites(Memory m) {
  *Out(m) = m.in[Thread()];
  __syncthreads();
  const unsigned block = kCorrect ? blockIdx.x : (blockIdx.x + 1) % kBlocks;
  m.counters[blockIdx.x * kThreads + Thread()] = static_cast<int>(m.out[block * kThreads + Across(Thread())]);
}

template <bool kCorrect>
__global__ void BlocksWriteTheSameNumber(Memory m) {
  if (kCorrect ? blockIdx.x == 0 : true) m.out[Thread()] = 1.0f;
}

template <bool kCorrect>
__global__ void ThreadsWriteTheSameNumber(Memory m) {
  if (kCorrect ? Thread() == 0 : true) Shared()[0] = 1.0f;
  __syncthreads();
  *Out(m) = Shared()[0];
}

template <bool kCorrect>
__global__ void ACopyOf16BytesThatOthersRead(Memory m) {
  shared_memory[Thread()] = reinterpret_cast<const float4*>(m.in)[Thread()];
  if (kCorrect) __syncthreads();
  *Out(m) = Shared()[Across(Thread()) * 4 + 3];
}

// Its last byte is another thread's first.
template <bool kCorrect>
__global__ void ACopyOf16BytesIntoANeighbours(Memory m) {
  if (WarpIndex() == 0) shared_memory[Lane()] = reinterpret_cast<const float4*>(m.in)[Lane()];
  char* const bytes = reinterpret_cast<char*>(shared_memory);
  if (Thread() == kWarp) bytes[kCorrect ? kWarp * 16 : kWarp * 16 - 1] = 0;
  *Out(m) = 0;
}

template <bool kCorrect>
__global__ void AMemcpyThatOthersRead(Memory m) {
  const int numbers = 1 + Thread() / kThreads;  // not a constant
  memcpy(Shared() + Thread(), m.in + Thread(), static_cast<size_t>(numbers) * sizeof(float));
  if (kCorrect) __syncthreads();
  *Out(m) = Shared()[Across(Thread())];
}

template <bool kCorrect>
__global__ void AnAsyncCopyThatIsNotWaitedFor(Memory m) {
  __pipeline_memcpy_async(&shared_memory[Thread()], m.in + Thread() * 4, 16);
  __pipeline_commit();
  if (kCorrect) __pipeline_wait_prior(0);
  __syncthreads();
  *Out(m) = Shared()[Across(Thread()) * 4];
}

template <bool kCorrect>
__global__ void AnAsyncCopyWithoutABarrier(Memory m) {
  __pipeline_memcpy_async(&shared_memory[Thread()], m.in + Thread() * 4, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  if (kCorrect) __syncthreads();
  *Out(m) = Shared()[Across(Thread()) * 4];
}

// Two buffers: the next tile's copy goes into the one that the last tile was read from.
template <bool kCorrect>
__global__ void AnAsyncCopyIntoABufferInUse(Memory m) {
  const auto ask = [&](int tile) {
    if (tile < kTiles) {
      __pipeline_memcpy_async(&shared_memory[tile % 2 * kThreads + Thread()], m.in + (tile * kThreads + Thread()) * 4,
                              16);
    }
    __pipeline_commit();
  };
  ask(0);
  float sum = 0;
  for (int tile = 0; tile < kTiles; ++tile) {
    ask(tile + 1);
    __pipeline_wait_prior(1);
    __syncthreads();
    sum += Shared()[(tile % 2 * kThreads + Across(Thread())) * 4];
    if (kCorrect) __syncthreads();
  }
  *Out(m) = sum;
}

// One group too many may still be under way.
template <bool kCorrect>
__global__ void AnAsyncCopyOfALaterGroup(Memory m) {
  for (int part = 0; part < 2; ++part) {
    __pipeline_memcpy_async(Shared() + (part * kThreads + Thread()) * 2, m.in + (part * kThreads + Thread()) * 2, 8);
    __pipeline_commit();
  }
  __pipeline_wait_prior(kCorrect ? 0 : 1);
  __syncthreads();
  *Out(m) = Shared()[Across(Thread()) * 2] + Shared()[(kThreads + Across(Thread())) * 2];
}

template <bool kCorrect>
__global__ void APlainReadBesideAtomics(Memory m) {
  atomicAdd(&m.counters[blockIdx.x], 1);
  if (kCorrect) __syncthreads();
  *Out(m) = static_cast<float>(m.counters[blockIdx.x]);
}

// Threads may write neighbouring bytes. A number across the bytes of two threads is a race.
template <bool kCorrect>
__global__ void AWordAcrossTwoThreadsBytes(Memory m) {
  char* const bytes = reinterpret_cast<char*>(m.counters) + (blockIdx.x * kThreads + Thread()) * sizeof(int);
  bytes[kCorrect ? 1 : 3] = 1;
  reinterpret_cast<BFloat16*>(bytes)[Thread() + 1 < kThreads ? (kCorrect ? 1 : 2) : 0] = {1};
}

template <void (*kKernel)(Memory)>
void Run() {
  std::vector<float4> in(kTiles * kThreads);
  std::vector<float> out(kBlocks * kThreads);
  std::vector<int> counters(kBlocks * kThreads);
  const Memory memory = {.in = &in[0].x, .out = out.data(), .counters = counters.data()};
  Launch(kKernel, dim3(kBlocks), kThreads, 2 * kThreads * static_cast<int64_t>(sizeof(float4)), nullptr, memory);
}

}  // namespace
}  // namespace berth::ops::cuda

namespace cuda_emulation {

#define BERTH_PLANTED(kernel)                                            \
  {                                                                      \
#kernel, berth::ops::cuda::Run < berth::ops::cuda::kernel < false>>, \
        berth::ops::cuda::Run < berth::ops::cuda::kernel < true>>        \
  }

std::vector<PlantedRace> PlantedRaces() {
  return {BERTH_PLANTED(NoBarrierBeforeReading),
          BERTH_PLANTED(NoBarrierBeforeTheRoomIsUsedAgain),
          BERTH_PLANTED(NoBarrierAtALoopsEnd),
          BERTH_PLANTED(ABarrierOfTheWarpForTheBlock),
          BERTH_PLANTED(NoBarrierInAWarp),
          BERTH_PLANTED(OneThreadReadsBeforeAnExchange),
          BERTH_PLANTED(ABlockReadsWhatAnotherWrites),
          BERTH_PLANTED(BlocksWriteTheSameNumber),
          BERTH_PLANTED(ThreadsWriteTheSameNumber),
          BERTH_PLANTED(ACopyOf16BytesThatOthersRead),
          BERTH_PLANTED(ACopyOf16BytesIntoANeighbours),
          BERTH_PLANTED(AMemcpyThatOthersRead),
          BERTH_PLANTED(AnAsyncCopyThatIsNotWaitedFor),
          BERTH_PLANTED(AnAsyncCopyWithoutABarrier),
          BERTH_PLANTED(AnAsyncCopyIntoABufferInUse),
          BERTH_PLANTED(AnAsyncCopyOfALaterGroup),
          BERTH_PLANTED(APlainReadBesideAtomics),
          BERTH_PLANTED(AWordAcrossTwoThreadsBytes)};
}

}  // namespace cuda_emulation
