// Products by the GPU's matrix units. Only for .cu files.
//
// The four threads that share rows of a product are a quad: thread 4 * Quad() + QuadLane() of a warp.
#ifndef BERTH_MODELS_KERNELS_CUDA_MATRIX_CUH_
#define BERTH_MODELS_KERNELS_CUDA_MATRIX_CUH_

#include "models/kernels/cuda/device.cuh"

namespace berth::ops::cuda {

__device__ inline int Quad() { return Lane() / 4; }
__device__ inline int QuadLane() { return Lane() % 4; }

// Two neighbours, as the matrix units take them.
__device__ inline uint32_t PairOf(uint32_t first_bits, uint32_t second_bits) { return first_bits | second_bits << 16; }

// Eight numbers at p, as the bits of bfloat16. Only the first `left` exist, and the others are zeros. `aligned`: whole
// runs lie on their size.
__device__ inline uint4 BitsOfEight(const BFloat16* p, int left, bool aligned) {
  if (aligned && left >= 8) return *reinterpret_cast<const uint4*>(p);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < left) words[i / 2] |= static_cast<uint32_t>(p[i].bits) << (i % 2 * 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
// Whole numbers up to 128 have at most eight bits, so nothing is lost.
__device__ inline uint4 BitsOfEight(uint2 int8) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = (i < 2 ? int8.x : int8.y) >> (i % 2 * 16);
    const float first = static_cast<float>(static_cast<int8_t>(two & 0xFFu));
    const float second = static_cast<float>(static_cast<int8_t>(two >> 8 & 0xFFu));
    words[i] = PairOf(__float_as_uint(first) >> 16, __float_as_uint(second) >> 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ inline uint4 BitsOfEight(const int8_t* p, int left, bool aligned) {
  uint2 bytes = {0, 0};
  if (aligned && left >= 8) {
    bytes = *reinterpret_cast<const uint2*>(p);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t byte = i < left ? static_cast<uint8_t>(p[i]) : 0;
      (i < 4 ? bytes.x : bytes.y) |= byte << (i % 4 * 8);
    }
  }
  return BitsOfEight(bytes);
}

// Adds a[16, 16] b[16, 8], of bfloat16, to the warp's sums [16, 8], of float32 (mma.m16n8k16 of the PTX ISA). A thread
// has pairs of neighbours along the dimension that is summed over. From a, it has those at 2 * QuadLane() in rows
// Quad() and Quad() + 8, and the same 8 further on. From b, it has those at 2 * QuadLane(), and 8 further on, in column
// Quad(). Its sums are columns 2 * QuadLane() and the next in row Quad(), and the same in row Quad() + 8.
__device__ inline void AddProduct(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float& sum0, float& sum1,
                                  float& sum2, float& sum3) {
#ifdef __CUDACC__
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum0), "+f"(sum1), "+f"(sum2), "+f"(sum3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  cuda_emulation::AddProduct(a, b0, b1, {&sum0, &sum1, &sum2, &sum3});
#endif
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_MATRIX_CUH_
