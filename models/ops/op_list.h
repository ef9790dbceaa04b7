// The one list of operations that have kernels. It makes the table of the CPU's kernels for each instruction set
// (cpu_kernels.h) and the table of CUDA's (cuda_kernels.h), with an entry for each type of activations: float32,
// bfloat16.
//
// A row OP(entry, Function, Args) says that the code of each kind defines, in its namespace,
//   CPU:  template <typename T> void Function(const Args& args, int64_t begin, int64_t end, char* scratch);
//   CUDA: template <typename T> int Function(const Args& args, const LaunchParams& launch);
//
// Each Args belongs to one row, so a function of the wrong row does not compile or link.
#ifndef BERTH_MODELS_OPS_OP_LIST_H_
#define BERTH_MODELS_OPS_OP_LIST_H_

#include "cache/dtype.h"
#include "models/ops/bidirectional_attention/bidirectional_attention_args.h"
#include "models/ops/causal_conv/causal_conv_args.h"
#include "models/ops/checkpoint/checkpoint_args.h"
#include "models/ops/elementwise/elementwise_args.h"
#include "models/ops/experts/experts_args.h"
#include "models/ops/gated_delta_net/gated_delta_net_args.h"
#include "models/ops/mamba/mamba_args.h"
#include "models/ops/matmul/matmul_args.h"
#include "models/ops/paged_attention/paged_attention_args.h"
#include "models/ops/rg_lru/rg_lru_args.h"

namespace berth::ops {

// The place in the tables of the entry for activations of this type.
inline constexpr int TypeIndex(DType type) { return type == DType::kFloat32 ? 0 : 1; }

}  // namespace berth::ops

// With kernels for both.
#define BERTH_OPS(OP)                                                             \
  OP(activation, Activate, ActivationArgs)                                        \
  OP(attention, Attention, AttentionArgs)                                         \
  OP(bidirectional_attention, BidirectionalAttention, BidirectionalAttentionArgs) \
  OP(choose_experts, ChooseExperts, ChooseExpertsArgs)                            \
  OP(conv, Conv, ConvArgs)                                                        \
  OP(delta_net, DeltaNet, DeltaNetArgs)                                           \
  OP(mamba_scan, MambaScan, MambaScanArgs)                                        \
  OP(mamba2_scan, Mamba2Scan, Mamba2ScanArgs)                                     \
  OP(prepare_heads, PrepareHeads, PrepareHeadsArgs)                               \
  OP(rg_lru, RgLru, RgLruArgs)                                                    \
  OP(rms_norm, RmsNorm, RmsNormArgs)                                              \
  OP(rotary, Rotary, RotaryArgs)                                                  \
  OP(sum_experts, SumExperts, SumExpertsArgs)                                     \
  OP(write_kv, WriteKv, WriteKvArgs)

// For the CPU alone: on CUDA, ATen computes them.
#define BERTH_CPU_OPS(OP)                                 \
  OP(add_residual, AddResidual, AddResidualArgs)          \
  OP(matmul, MatMul, MatMulArgs)                          \
  OP(merge_attention, MergeAttention, MergeAttentionArgs) \
  OP(pack_matrix, PackMatrix, PackMatrixArgs)             \
  OP(prepare_inputs, PrepareInputs, PrepareInputsArgs)

// For CUDA alone: conversions of states, products with matrices that are not packed, and the choice of tokens.
#define BERTH_CUDA_OPS(OP)                             \
  OP(convert_states, ConvertStates, ConvertStatesArgs) \
  OP(expand_int8, ExpandInt8, ExpandInt8Args)          \
  OP(expert_matmul, ExpertMatMul, ExpertMatMulArgs)    \
  OP(gated_matmul, GatedMatMul, GatedMatMulArgs)       \
  OP(greedy, Greedy, GreedyArgs)                       \
  OP(group_pairs, GroupPairs, GroupPairsArgs)          \
  OP(int8_matmul, Int8MatMul, Int8MatMulArgs)          \
  OP(sample, Sample, SampleArgs)

#endif  // BERTH_MODELS_OPS_OP_LIST_H_

// The CPU's code of the operations, for cpu_kernels.inc: each after what it needs.
#if defined(BERTH_INCLUDE_CPU_CODE)
// clang-format off
#include "models/ops/elementwise/cpu.inc"
#include "models/ops/matmul/cpu.inc"
#if defined(BERTH_AMX)
#include "models/kernels/cpu/matrix_amx.inc"  // made of matmul's tiles
#endif
#include "models/ops/paged_attention/cpu.inc"  // so is attention
#include "models/ops/bidirectional_attention/cpu.inc"
#include "models/ops/causal_conv/cpu.inc"
#include "models/ops/experts/cpu.inc"
#include "models/ops/gated_delta_net/cpu.inc"
#include "models/ops/mamba/cpu.inc"
#include "models/ops/matmul/cpu_pack.inc"
#include "models/ops/rg_lru/cpu.inc"
// clang-format on
#endif
