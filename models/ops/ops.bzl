"""How an operation's folder becomes targets, and the sources of its kernels."""

load("//:berth.bzl", "berth_library")

def berth_op(name, deps = []):
    """The operation of folder <name>: its interface <name>.h, its dispatch and its ATen reference."""
    berth_library(
        name = name,
        srcs = native.glob([name + "/*.cc"]),
        hdrs = native.glob(
            [name + "/*.h"],
            exclude = [name + "/*_args.h"],
        ),
        deps = deps + [
            ":backend",
            ":cpu_kernels",
            ":parallel",
            ":reference_views",
            "//models/step:step_batch",
            "@libtorch//:torch",
        ],
    )

# The CUDA kernels: for nvcc, and for the emulation in tests/models/kernels/cuda_emulation.
CUDA_SOURCES = {
    "bidirectional_attention": "//models/ops:bidirectional_attention/cuda.cu",
    "causal_conv": "//models/ops:causal_conv/cuda.cu",
    "elementwise": "//models/ops:elementwise/cuda.cu",
    "gated_delta_net": "//models/ops:gated_delta_net/cuda.cu",
    "greedy": "//models/sampling:greedy.cu",
    "mamba": "//models/ops:mamba/cuda.cu",
    "matmul": "//models/ops:matmul/cuda.cu",
    "paged_attention": "//models/ops:paged_attention/cuda.cu",
    "rg_lru": "//models/ops:rg_lru/cuda.cu",
    "sample": "//models/sampling:sample.cu",
    "write_kv": "//models/ops:paged_attention/write_kv.cu",
}
