// What the products of matmul/cuda.cu multiply. Only for .cu files.
#ifndef BERTH_MODELS_OPS_MATMUL_PRODUCT_ROWS_CUH_
#define BERTH_MODELS_OPS_MATMUL_PRODUCT_ROWS_CUH_

#include <stdint.h>

namespace berth::ops::cuda {

// A matrix [outputs, inputs] of W.
template <typename W>
struct Weight {
  const W* values;
  const float* scales;  // [outputs]; null: none
  int64_t outputs, inputs;
};

// Where rows of x and of the result lie.
template <typename T>
struct Rows {
  const T* x;
  const T* bias;  // [outputs] or null
  T* out;
  int64_t x_stride, out_stride;
  bool x_aligned;
  // Which rows of both they are; null: row r is row r.
  const int* x_rows;
  const int* out_rows;

  __device__ const T* X(int row) const { return x + (x_rows == nullptr ? row : x_rows[row]) * x_stride; }
  __device__ T* Out(int row) const { return out + (out_rows == nullptr ? row : out_rows[row]) * out_stride; }
};

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_MATMUL_PRODUCT_ROWS_CUH_
