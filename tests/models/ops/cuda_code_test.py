#!/usr/bin/env python3
"""What nvcc made of each CUDA kernel for sm_90, against a table: registers, spills, wide loads, tensor-core products.

Registers and spills are what ptxas reports. Loads of 16 bytes from global memory and products of the matrix units are
counted in the PTX. A kernel may become better than its line, not worse. A new kernel needs a line.
"""

import glob
import os
import re
import subprocess
import sys

# object, kernel: registers, bytes of spill stores and loads, loads of 16 bytes, matrix products.
TABLE = """
bidirectional_attention_cuda AttentionKernel<MmaMath<16>, AllKeys>: 255 0 0 1 140
bidirectional_attention_cuda AttentionKernel<MmaMath<4>, AllKeys>: 149 0 0 1 44
bidirectional_attention_cuda AttentionKernel<MmaMath<8>, AllKeys>: 166 0 0 1 76
bidirectional_attention_cuda AttentionKernel<SimtMath<16>, AllKeys>: 168 56 52 0 0
bidirectional_attention_cuda AttentionKernel<SimtMath<4>, AllKeys>: 96 92 108 0 0
bidirectional_attention_cuda AttentionKernel<SimtMath<8>, AllKeys>: 128 44 100 0 0
bidirectional_attention_cuda MergeKernel<16, AllKeys>: 134 0 0 0 0
bidirectional_attention_cuda MergeKernel<2, AllKeys>: 40 0 0 0 0
bidirectional_attention_cuda MergeKernel<4, AllKeys>: 48 0 0 0 0
bidirectional_attention_cuda MergeKernel<8, AllKeys>: 72 0 0 0 0
causal_conv_cuda ConvKernel<BFloat16>: 38 0 0 0 0
causal_conv_cuda ConvKernel<float>: 36 0 0 0 0
causal_conv_cuda ConvStateKernel<BFloat16>: 32 0 0 0 0
causal_conv_cuda ConvStateKernel<float>: 32 0 0 0 0
checkpoint_cuda ConvertStatesKernel: 32 0 0 0 0
elementwise_cuda ActivationKernel<BFloat16>: 31 0 0 2 0
elementwise_cuda ActivationKernel<float>: 26 0 0 2 0
elementwise_cuda BlockNormKernel<BFloat16, false>: 48 0 0 11 0
elementwise_cuda BlockNormKernel<BFloat16, true>: 58 0 0 16 0
elementwise_cuda BlockNormKernel<float, false>: 32 0 0 9 0
elementwise_cuda BlockNormKernel<float, true>: 34 0 0 8 0
elementwise_cuda RotaryKernel<BFloat16>: 38 0 0 2 0
elementwise_cuda RotaryKernel<float>: 38 0 0 2 0
elementwise_cuda WarpNormKernel<BFloat16, false>: 62 0 0 11 0
elementwise_cuda WarpNormKernel<BFloat16, true>: 70 0 0 16 0
elementwise_cuda WarpNormKernel<float, false>: 48 0 0 9 0
elementwise_cuda WarpNormKernel<float, true>: 54 0 0 8 0
experts_cuda ChooseExpertsKernel: 32 0 0 0 0
experts_cuda SumExpertsKernel<BFloat16>: 32 0 0 1 0
experts_cuda SumExpertsKernel<float>: 29 0 0 5 0
gated_delta_net_cuda DeltaNetKernel<BFloat16, 16>: 235 0 0 0 0
gated_delta_net_cuda DeltaNetKernel<BFloat16, 8>: 126 0 0 0 0
gated_delta_net_cuda DeltaNetKernel<float, 16>: 234 0 0 48 0
gated_delta_net_cuda DeltaNetKernel<float, 8>: 125 0 0 24 0
greedy GreedyKernel<BFloat16>: 36 0 0 2 0
greedy GreedyKernel<float>: 30 0 0 2 0
mamba_cuda Mamba2Kernel<BFloat16, 16>: 241 0 0 0 0
mamba_cuda Mamba2Kernel<BFloat16, 8>: 148 0 0 0 0
mamba_cuda Mamba2Kernel<float, 16>: 245 0 0 32 0
mamba_cuda Mamba2Kernel<float, 8>: 153 0 0 16 0
mamba_cuda MambaKernel<BFloat16, 16>: 72 0 0 0 0
mamba_cuda MambaKernel<BFloat16, 64>: 157 0 0 0 0
mamba_cuda MambaKernel<float, 16>: 70 0 0 0 0
mamba_cuda MambaKernel<float, 64>: 159 0 0 0 0
matmul_cuda ExpandInt8Kernel<BFloat16>: 32 0 0 1 0
matmul_cuda ExpandInt8Kernel<float>: 32 0 0 1 0
matmul_cuda ExpertGroupKernel<float>: 94 0 0 4 0
matmul_cuda ExpertGroupKernel<signed char>: 168 0 0 16 0
matmul_cuda ExpertProductKernel<BFloat16, BFloat16>: 125 0 0 4 0
matmul_cuda ExpertProductKernel<BFloat16, signed char>: 157 0 0 8 0
matmul_cuda ExpertProductKernel<float, float>: 96 0 0 4 0
matmul_cuda ExpertProductKernel<float, signed char>: 168 0 0 16 0
matmul_cuda ExpertTileKernel<BFloat16>: 162 0 0 24 64
matmul_cuda ExpertTileKernel<signed char>: 163 0 0 24 64
matmul_cuda GatedProductKernel<BFloat16, BFloat16, 1>: 72 0 0 9 0
matmul_cuda GatedProductKernel<BFloat16, BFloat16, 4>: 93 0 0 12 0
matmul_cuda GatedProductKernel<BFloat16, signed char, 1>: 96 0 0 6 0
matmul_cuda GatedProductKernel<BFloat16, signed char, 4>: 128 0 0 12 0
matmul_cuda GatedProductKernel<BFloat16, signed char, 8>: 156 0 0 20 0
matmul_cuda GatedProductKernel<float, float, 1>: 48 0 0 9 0
matmul_cuda GatedProductKernel<float, float, 4>: 67 0 0 12 0
matmul_cuda GatedProductKernel<float, signed char, 1>: 95 0 0 8 0
matmul_cuda GatedProductKernel<float, signed char, 4>: 151 0 0 20 0
matmul_cuda GatedProductKernel<float, signed char, 8>: 190 0 0 36 0
matmul_cuda GroupPairsKernel: 32 0 0 0 0
matmul_cuda Int8ProductKernel<BFloat16, 16>: 168 0 0 36 0
matmul_cuda Int8ProductKernel<BFloat16, 1>: 94 0 0 6 0
matmul_cuda Int8ProductKernel<BFloat16, 4>: 128 0 0 12 0
matmul_cuda Int8ProductKernel<BFloat16, 8>: 156 0 0 20 0
matmul_cuda Int8ProductKernel<float, 16>: 242 0 0 68 0
matmul_cuda Int8ProductKernel<float, 1>: 96 0 0 8 0
matmul_cuda Int8ProductKernel<float, 4>: 151 0 0 20 0
matmul_cuda Int8ProductKernel<float, 8>: 190 0 0 36 0
matmul_cuda Int8TileKernel: 162 0 0 32 64
paged_attention_cuda AttentionKernel<MmaMath<16>, CausalKeys>: 253 0 0 1 140
paged_attention_cuda AttentionKernel<MmaMath<4>, CausalKeys>: 157 0 0 1 44
paged_attention_cuda AttentionKernel<MmaMath<8>, CausalKeys>: 205 0 0 1 76
paged_attention_cuda AttentionKernel<SimtMath<16>, CausalKeys>: 168 24 24 0 0
paged_attention_cuda AttentionKernel<SimtMath<4>, CausalKeys>: 96 112 136 0 0
paged_attention_cuda AttentionKernel<SimtMath<8>, CausalKeys>: 128 116 156 0 0
paged_attention_cuda MergeKernel<16, CausalKeys>: 128 0 0 0 0
paged_attention_cuda MergeKernel<2, CausalKeys>: 53 0 0 0 0
paged_attention_cuda MergeKernel<4, CausalKeys>: 62 0 0 0 0
paged_attention_cuda MergeKernel<8, CausalKeys>: 80 0 0 0 0
paged_attention_flashinfer FlashInferKernel<128u, 128u, (Scores)0, __nv_bfloat16>: 255 4 4 0 264
paged_attention_flashinfer FlashInferKernel<128u, 128u, (Scores)1, __nv_bfloat16>: 255 12 12 0 264
paged_attention_flashinfer FlashInferKernel<128u, 128u, (Scores)2, __nv_bfloat16>: 255 16 16 0 264
paged_attention_flashinfer FlashInferKernel<128u, 64u, (Scores)0, __nv_bfloat16>: 238 0 0 0 136
paged_attention_flashinfer FlashInferKernel<128u, 64u, (Scores)1, __nv_bfloat16>: 249 0 0 0 136
paged_attention_flashinfer FlashInferKernel<128u, 64u, (Scores)2, __nv_bfloat16>: 242 0 0 0 136
paged_attention_flashinfer FlashInferKernel<16u, 128u, (Scores)0, __nv_bfloat16>: 178 0 0 0 66
paged_attention_flashinfer FlashInferKernel<16u, 128u, (Scores)0, float>: 168 8 8 0 66
paged_attention_flashinfer FlashInferKernel<16u, 128u, (Scores)1, __nv_bfloat16>: 178 0 0 0 66
paged_attention_flashinfer FlashInferKernel<16u, 128u, (Scores)1, float>: 205 0 0 0 66
paged_attention_flashinfer FlashInferKernel<16u, 128u, (Scores)2, __nv_bfloat16>: 178 0 0 0 66
paged_attention_flashinfer FlashInferKernel<16u, 128u, (Scores)2, float>: 178 0 0 0 66
paged_attention_flashinfer FlashInferKernel<16u, 64u, (Scores)0, __nv_bfloat16>: 248 0 0 0 68
paged_attention_flashinfer FlashInferKernel<16u, 64u, (Scores)0, float>: 246 0 0 0 68
paged_attention_flashinfer FlashInferKernel<16u, 64u, (Scores)1, __nv_bfloat16>: 246 0 0 0 68
paged_attention_flashinfer FlashInferKernel<16u, 64u, (Scores)1, float>: 246 0 0 0 68
paged_attention_flashinfer FlashInferKernel<16u, 64u, (Scores)2, __nv_bfloat16>: 248 0 0 0 68
paged_attention_flashinfer FlashInferKernel<16u, 64u, (Scores)2, float>: 246 0 0 0 68
paged_attention_flashinfer FlashInferKernel<64u, 128u, (Scores)0, __nv_bfloat16>: 165 0 0 0 132
paged_attention_flashinfer FlashInferKernel<64u, 128u, (Scores)1, __nv_bfloat16>: 168 0 0 0 132
paged_attention_flashinfer FlashInferKernel<64u, 128u, (Scores)2, __nv_bfloat16>: 165 0 0 0 132
paged_attention_flashinfer FlashInferKernel<64u, 64u, (Scores)0, __nv_bfloat16>: 128 8 8 0 68
paged_attention_flashinfer FlashInferKernel<64u, 64u, (Scores)1, __nv_bfloat16>: 167 0 0 0 68
paged_attention_flashinfer FlashInferKernel<64u, 64u, (Scores)2, __nv_bfloat16>: 160 0 0 0 68
paged_attention_flashinfer FlashInferPlanKernel: 32 0 0 0 0
paged_attention_flashinfer MergeStatesKernel<4u, 16u, 8u, 4u, float, __nv_bfloat16, long>: 48 0 0 1 0
paged_attention_flashinfer MergeStatesKernel<4u, 32u, 4u, 4u, float, __nv_bfloat16, long>: 48 0 0 1 0
paged_attention_prepare_heads PrepareHeadsKernel<BFloat16>: 40 0 0 1 0
paged_attention_prepare_heads PrepareHeadsKernel<float>: 48 0 0 3 0
paged_attention_write_kv WriteKvKernel<BFloat16>: 32 0 0 1 0
paged_attention_write_kv WriteKvKernel<float>: 32 0 0 3 0
rg_lru_cuda RgLruKernel<BFloat16>: 31 0 0 0 0
rg_lru_cuda RgLruKernel<float>: 31 0 0 0 0
sample SampleKernel<BFloat16>: 117 0 0 42 0
sample SampleKernel<float>: 126 0 0 42 0
"""

COLUMNS = ("registers", "spill stores", "spill loads", "wide loads", "matrix products")
MORE_IS_WORSE = (True, True, True, False, False)

PTXAS = re.compile(
    r"Compiling entry function '(\w+)' for 'sm_90'\n.*\n"
    r"\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r"ptxas info\s+: Used (\d+) registers"
)
WIDE_LOAD = re.compile(r"\bld\.global[\w.:]*\.(?:v4\.\w32|v2\.\w64)")
PRODUCT = re.compile(r"\bmma\.sync")


def counts_of(ptx):
    """By mangled name: loads of 16 bytes, and matrix products."""
    counts = {}
    for body in re.split(r"\.entry (?=\w+\()", ptx)[1:]:
        counts[body[: body.index("(")]] = (len(WIDE_LOAD.findall(body)), len(PRODUCT.findall(body)))
    return counts


def readable(mangled):
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    theirs = "flashinfer::PersistentVariableLength"
    for part in ("berth::ops::cuda::", "(anonymous namespace)::", "berth::ops::", theirs, "void "):
        name = name.replace(part, "")
    return name[: name.rindex("(")]


def kernels_in(folder):
    """(object, kernel) -> numbers, in the order of COLUMNS."""
    kernels = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.ptxas.txt"))):
        stem = path[: -len(".ptxas.txt")]
        with open(stem + ".ptx") as ptx, open(path) as log:
            counts = counts_of(ptx.read())
            for mangled, stores, loads, registers in PTXAS.findall(log.read()):
                numbers = (int(registers), int(stores), int(loads)) + counts[mangled]
                kernels[f"{os.path.basename(stem)} {readable(mangled)}"] = numbers
    return kernels


def table():
    lines = (line.rsplit(": ", 1) for line in TABLE.strip().splitlines())
    return {name: tuple(int(n) for n in numbers.split()) for name, numbers in lines}


def faults(found, expected):
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or name not in expected:
            yield f"{name}: {'has no line in the table' if name in found else 'was not compiled'}"
            continue
        for column, worse, has, may in zip(COLUMNS, MORE_IS_WORSE, found[name], expected[name]):
            if has > may if worse else has < may:
                yield f"{name}: {has} {column}, but the table has {may}"


def main():
    found = kernels_in("models/ops")
    wrong = list(faults(found, table()))
    for fault in wrong:
        print(fault)
    if wrong:
        print("The table would be:")
        for name, numbers in sorted(found.items()):
            print(f"{name}: {' '.join(str(n) for n in numbers)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
