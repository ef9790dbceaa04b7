"""How an operation's folder becomes a target, and how CUDA code is built."""

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

# Machine code for A100 and H100; what is newer translates the latter's PTX when it loads the library. Nothing of
# sm_90a's own is used.
ARCHITECTURES = [
    "arch=compute_80,code=sm_80",
    "arch=compute_90,code=[sm_90,compute_90]",
]

_CUDA_TAGS = [
    "manual",
    "no-sandbox",  # the compiler is a folder of programs that find each other
]

def cuda_object(name, source, hdrs, options):
    """nvcc makes <name>.cuda.o, with what ptxas says of each kernel, and the PTX for the newest architecture.

    Tests check both.
    """
    native.genrule(
        name = name + "_object",
        srcs = [source] + hdrs,
        outs = [
            name + ".cuda.o",
            name + ".ptxas.txt",
            name + ".ptx",
        ],
        cmd = " ".join(
            ["kept=$$(mktemp -d) && trap 'rm -r $$kept' EXIT &&"] +
            ["($(execpath @cuda//:nvcc) -c -O3 -std=c++20 -I. -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra"] +
            ["-Werror=all-warnings -Xptxas=-v -keep -keep-dir=$$kept"] + options +
            ["-gencode=" + a for a in ARCHITECTURES] +
            ["-o $(execpath %s.cuda.o) $(execpath %s)" % (name, source)] +
            ["2>$(execpath %s.ptxas.txt) || (cat $(execpath %s.ptxas.txt) >&2 && false)) &&" % (name, name)] +
            ["cp $$kept/*compute_90*.ptx $(execpath %s.ptx)" % name],
        ),
        tags = _CUDA_TAGS,
        tools = ["@cuda//:nvcc"],
        visibility = ["//visibility:private"],
    )

def cuda_library(name, hdrs, objects, title, defines = []):
    """<name>.so: the table of kernels, with these objects. The log of a server's start has its title."""
    native.genrule(
        name = name,
        srcs = ["cuda_table.cc"] + hdrs + [object + ".cuda.o" for object in objects] + ["@cuda//:cudart"],
        outs = [name + ".so"],
        cmd = " ".join(
            ["g++ -shared -O2 -std=c++20 -fPIC -fvisibility=hidden -I. -o $@"] + ["-D" + define for define in defines] +
            ["-DBERTH_CUDA_NAME='\"%s\"' -DBERTH_CUDA_ON_HOST=false $(execpath cuda_table.cc)" % title] +
            ["$(execpath %s.cuda.o)" % object for object in objects] +
            ["-Wl,--no-undefined $(execpath @cuda//:cudart)"],
        ),
        tags = _CUDA_TAGS,
        visibility = [
            "//server:__pkg__",
            "//tests/models:__subpackages__",
        ],
    )
