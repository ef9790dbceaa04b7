"""How an operation's folder becomes a target."""

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
            ":state_phases",
            "//models/step:execution",
            "//models/step:step_batch",
            "@libtorch//:torch",
        ],
    )
