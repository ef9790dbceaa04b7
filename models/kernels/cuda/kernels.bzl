"""The kernels' sources, <name>.cu each: for nvcc, and for the emulation in tests/models/kernels/cuda_emulation."""

CUDA_KERNELS = [
    "attention",
    "conv",
    "delta_net",
    "elementwise",
    "greedy",
    "mamba",
    "product",
    "rg_lru",
    "sample",
    "span_attention",
    "write_kv",
]
