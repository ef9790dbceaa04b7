// How the matrices of dense products are kept.
#ifndef BERTH_MODELS_OPS_MATMUL_WEIGHT_STORAGE_H_
#define BERTH_MODELS_OPS_MATMUL_WEIGHT_STORAGE_H_

namespace berth {

// kExact loses nothing; kInt8 has a scale for each output, kInt4 also a width for each 32 inputs (matmul_args.h).
enum class WeightStorage { kExact, kInt8, kInt4 };

}  // namespace berth

#endif  // BERTH_MODELS_OPS_MATMUL_WEIGHT_STORAGE_H_
