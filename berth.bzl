"""The rules of this repository's BUILD files: cc_library, cc_test and cc_binary with what nearly every target repeats.

Each takes all other attributes of its cc_ rule. Abseil is a dependency of every target; the linker drops what is unused.
"""

# The tags of a test that calls gRPC. Debian's gRPC is not built for ThreadSanitizer: what it passes between threads is
# reported as a race.
USES_GRPC = ["no-tsan"]

# The tag of a test with map fields: they have other bytes in code that is compiled for ThreadSanitizer than in the
# system's libprotobuf.
HAS_PROTO_MAPS = ["no-tsan"]

# The tag of a test whose processes have limits of memory. They leave the address sanitizer no room.
LIMITS_MEMORY = ["no-asan"]

# The tags of a test that gives costly inputs to the text crate: it takes four minutes with a sanitizer. With the address
# sanitizer, the fuzzers run the same code; the thread sanitizer sees nothing of the crate, which is Rust.
HAS_COSTLY_INPUTS = ["no-asan", "no-tsan"]

# The tags of a test that is compiled with the hooks of a sanitizer, and has its own functions behind them.
HAS_OWN_SANITIZER = ["no-asan", "no-tsan"]

_COMMON_DEPS = ["@system//:absl"]

_TORCH = "@libtorch//:torch"

# What uses LibTorch reads its headers precompiled: they take longer to parse than the rest takes to compile. Not where a
# target has options of its own: the header was compiled without them.
def _reads_precompiled(deps, copts):
    return _TORCH in deps and not copts

# What a test is compiled with, where it includes no LibTorch: it is compiled about as often as it runs, so -O1 is enough,
# and it reads GoogleTest's headers precompiled. clang, for asan, cannot read what g++ precompiles.
_TEST_COPTS = ["-O1"] + select({
    "//:asan": [],
    "//conditions:default": ["-include", "third_party/precompiled/gtest.h", "-fpch-deps"],
})
_TEST_DEPS = select({"//:asan": [], "//conditions:default": ["//third_party/precompiled:gtest"]})

def _common_deps(deps, copts):
    return deps + _COMMON_DEPS + (["//third_party/precompiled:torch"] if _reads_precompiled(deps, copts) else [])

def _common_copts(deps, copts):
    reads = ["-include", "third_party/precompiled/torch.h", "-fpch-deps"]
    return copts + (reads if _reads_precompiled(deps, copts) else [])

def berth_library(name, srcs = None, hdrs = None, deps = [], copts = [], **kwargs):
    """A library of <name>.cc and <name>.h. A library of headers alone has `srcs = []`."""
    native.cc_library(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        hdrs = [name + ".h"] if hdrs == None else hdrs,
        deps = _common_deps(deps, copts),
        copts = _common_copts(deps, copts),
        **kwargs
    )

def berth_test(name, srcs = None, size = "small", deps = [], copts = [], **kwargs):
    """A GoogleTest of <name>.cc."""
    plain = _TORCH not in deps and not copts
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        size = size,
        deps = _common_deps(deps, copts) + ["@system//:gtest_main"] + (_TEST_DEPS if plain else []),
        copts = _common_copts(deps, copts) + (_TEST_COPTS if plain else []),
        **kwargs
    )

def berth_binary(name, deps = [], copts = [], **kwargs):
    """A program."""
    native.cc_binary(
        name = name,
        deps = _common_deps(deps, copts),
        copts = _common_copts(deps, copts),
        **kwargs
    )

def berth_fuzz_test(name, deps = [], data = [], dictionary = None, **kwargs):
    """A libFuzzer target of <name>.cc, built and run with --config=asan.

    It runs the inputs in corpus/<name>, then new ones (tests/fuzz/fuzz_main.cc says how long). `dictionary`: a file of
    words that are put into inputs.
    """
    native.cc_test(
        name = name,
        srcs = [name + ".cc"],
        timeout = "moderate",
        args = (["-dict=tests/fuzz/" + dictionary] if dictionary else []) + ["tests/fuzz/corpus/" + name],
        data = data + native.glob(["corpus/" + name + "/*"]) + ([dictionary] if dictionary else []),
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = _common_deps(deps, []) + ["//tests/fuzz:fuzz_main"],
        **kwargs
    )
