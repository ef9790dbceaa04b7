// The entries of the table, each in the .cu of its name. By the type of the activations.
#ifndef BERTH_MODELS_OPS_CUDA_ENTRIES_H_
#define BERTH_MODELS_OPS_CUDA_ENTRIES_H_

#include "models/ops/cuda_kernels.h"

namespace berth::ops::cuda {

// The 16 bits of a bfloat16.
struct BFloat16 {
  uint16_t bits;
};

template <typename T>
int RmsNorm(const RmsNormArgs& args, const Work& work);
template <typename T>
int Activate(const ActivationArgs& args, const Work& work);
template <typename T>
int Rotary(const RotaryArgs& args, const Work& work);
template <typename T>
int WriteKv(const WriteKvArgs& args, const Work& work);
template <typename T>
int Attention(const AttentionArgs& args, const SplitKv& split, const Work& work);
template <typename T>
int BidirectionalAttention(const BidirectionalAttentionArgs& args, const SplitKv& split, const Work& work);
template <typename T>
int Conv(const ConvArgs& args, const Work& work);
template <typename T>
int MambaScan(const MambaScanArgs& args, const Work& work);
template <typename T>
int Mamba2Scan(const Mamba2ScanArgs& args, const Work& work);
template <typename T>
int DeltaNet(const DeltaNetArgs& args, const Work& work);
template <typename T>
int RgLru(const RgLruArgs& args, const Work& work);
template <typename T>
int Int8MatMul(const Int8MatMulArgs& args, const Work& work);
template <typename T>
int ExpandInt8(const ExpandInt8Args& args, const Work& work);
template <typename T>
int ExpertMatMul(const ExpertMatMulArgs& args, const Work& work);
int Greedy(const GreedyArgs& args, void* stream);
int Sample(const SampleArgs& args, void* stream);

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_CUDA_ENTRIES_H_
