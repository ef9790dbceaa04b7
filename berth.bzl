"""The rules of this repository's BUILD files: cc_library, cc_test and cc_binary with what nearly every target repeats.

Each takes all other attributes of its cc_ rule. Abseil is a dependency of every target; the linker drops what is unused.
"""

# The tags of a test that calls gRPC. Debian's gRPC is not built for ThreadSanitizer: what it passes between threads is
# reported as a race.
USES_GRPC = ["no-tsan"]

_COMMON_DEPS = ["@system//:absl"]

def berth_library(name, srcs = None, hdrs = None, deps = [], **kwargs):
    """A library of <name>.cc and <name>.h. A library of headers alone has `srcs = []`."""
    native.cc_library(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        hdrs = [name + ".h"] if hdrs == None else hdrs,
        deps = deps + _COMMON_DEPS,
        **kwargs
    )

def berth_test(name, srcs = None, size = "small", deps = [], **kwargs):
    """A GoogleTest of <name>.cc."""
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        size = size,
        deps = deps + _COMMON_DEPS + ["@system//:gtest_main"],
        **kwargs
    )

def berth_binary(name, deps = [], **kwargs):
    """A program."""
    native.cc_binary(
        name = name,
        deps = deps + _COMMON_DEPS,
        **kwargs
    )
