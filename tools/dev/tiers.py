"""Which tests there are, and in which of the two tiers of `./dev test` each is.

The first tier finds what a change broke. The second runs for as long as there is time: more cases of the same tests,
and what takes longest. tests/dev/test_which_tests.py lists each test that is in neither.
"""

# What the programs of a Python test are built from, for a run that does not build everything.
PROGRAMS = ["//server/...", "//client/...", "//tests/text/...", "//tests/models/sampling:all"]

# Built by `bazel build` only where it is named: CUDA's kernels, and tests of the compiled code.
CUDA_LIBRARIES = ["//server:libberth_cuda", "//server:libberth_cuda_graph"]
CUDA_TESTS = ["//tests/models/ops:cuda_library_test", "//tests/models/ops:cuda_code_test"]

FUZZERS = "//tests/fuzz"

# Python tests, by folder. All but tests/dev drive a built program; those of the gateway have packages of their own.
PYTHON_TESTS = ["tests/dev", "tests/models", "tests/text", "tests/deploy", "tests/e2e", "tests/clients", "tests/docs",
                "tests/bench", "tests/parity"]
GATEWAY_TESTS = ["tests/gateway"]

# Tests of the second tier: they cover what packs programs for a machine with a GPU, and runs them on the CPU.
GPU_TESTS = ["tests/gpu"]

# Tests of the second tier: tokenizers of 32,000 to 262,000 tokens, which they install.
PUBLISHED_TESTS = ["tests/published"]

# The tests that read BERTH_FULL. With it they run many more cases, for minutes to hours.
LONG_BAZEL_TESTS = ["//tests/cache:cache_property_test", "//tests/cache:prefix_mirror_test",
                    "//tests/models/families:config_changes_test", "//tests/models/sampling:sample_step_test",
                    "//tests/scheduler:engine_stress_test", "//tests/scheduler:scheduler_property_test"]
LONG_PYTHON_TESTS = ["tests/clients/test_other_languages.py", "tests/deploy/test_image.py", "tests/e2e/test_demo.py",
                     "tests/e2e/test_signals.py", "tests/e2e/test_soak.py", "tests/e2e/test_structure.py",
                     "tests/text/test_random_schemas.py"]
LONG_GATEWAY_TESTS = ["tests/gateway/test_conformance.py", "tests/gateway/test_guidellm.py"]

# Tests that do not need LibTorch, which no sanitizer has seen and whose headers take longest to compile. Tags say which
# of them a sanitizer cannot check (berth.bzl).
TORCH_FREE_TESTS = """
    let tests = tests(//tests/...) except attr(tags, manual, //tests/...) in
    $tests except rdeps($tests, @libtorch//:torch)"""

# The folders of the code that parses what others send: checkpoints, texts, requests, flags, files that were saved. In the
# first tier the address sanitizer checks these; in the second, all torch-free tests.
PARSERS = ["//tests/client", "//tests/flags", "//tests/models/checkpoint", "//tests/server", "//tests/text"]

# What starts a thread. In the first tier the thread sanitizer checks the tests that need a source with one of these; in the
# second, all torch-free tests.
STARTS_THREAD = r"std::j?thread\b|std::async|pthread_create"


def parsers(tests):
    """Returns the Bazel labels that are in PARSERS."""
    return [label for label in tests if label.startswith(tuple(f"{folder}{end}" for folder in PARSERS for end in "/:"))]


def threaded_query(tests, sources):
    """The Bazel query of those tests that need one of the sources. Both are lists of labels."""
    return f"""let tests = set({" ".join(tests)}) in rdeps($tests, set({" ".join(sources)})) intersect $tests"""


# The targets with LibTorch under the address sanitizer, in the second tier.
TORCH_TESTS = """
    let tests = tests(//tests/models/...) except attr(tags, manual, //tests/models/...) in
    rdeps($tests, @libtorch//:torch) intersect $tests"""
