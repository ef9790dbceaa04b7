"""Chooses the tests of `./dev test --changed`: those that depend on a changed file.

Reads the changed files from stdin, one a line. Prints one choice a line: `bazel PATTERN`, a part of a Bazel query whose
dependent tests are to run, or `python PATH`, a Python test or a folder of them.
"""

import os
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))

# A change of these can change every target.
BUILDS_ALL = (".bazelrc", "WORKSPACE", "berth.bzl", "third_party/")

# The Python tests that a change in each folder concerns, beside those in the folder itself. Each drives a built program.
PYTHON_TESTS = {
    "cache/": ["tests/e2e"],
    "client/": ["tests/e2e", "tests/docs"],
    "clients/": ["tests/clients", "tests/docs"],
    "deploy/": ["tests/deploy", "tests/docs"],
    "models/": ["tests/models", "tests/e2e"],
    "models/demo/": ["tests/docs"],
    "proto/": ["tests/e2e", "tests/clients", "tests/docs"],
    "proto/vllm/": ["tests/gateway"],
    "scheduler/": ["tests/e2e"],
    "server/": ["tests/e2e", "tests/clients", "tests/docs", "tests/deploy", "tests/gateway"],
    "text/": ["tests/text", "tests/e2e"],
    "tests/bench/": ["tests/bench"],
    "tests/bench/gateway_bench.py": ["tests/gateway"],
    "tests/clients/": ["tests/clients"],
    "tests/gpu/": ["tests/gpu"],
    "tests/parity/": ["tests/parity"],
    "tests/testing/": ["tests/models", "tests/text", "tests/e2e", "tests/clients", "tests/docs", "tests/gateway"],
    "tools/": ["tests/gateway"],
    "docs/": ["tests/docs"],
    "flags/": ["tests/e2e", "tests/docs"],
    "dev": ["tests/dev"],
}


def package_of(path, exists):
    """The nearest folder above `path` that has a BUILD file; "" is the root."""
    folder = os.path.dirname(path)
    while folder and not exists(os.path.join(folder, "BUILD")):
        folder = os.path.dirname(folder)
    return folder


def bazel_patterns(path, exists):
    if path.startswith(BUILDS_ALL):
        return ["//..."]
    package = package_of(path, exists)
    if not package:
        return []
    # A BUILD file or a removed file concerns its whole package.
    if os.path.basename(path) == "BUILD" or not exists(path):
        return [f"//{package}:all"]
    return [f"//{package}:{os.path.relpath(path, package)}"]


def python_tests(path, exists):
    if os.path.basename(path).startswith("test_") and path.endswith(".py"):
        return [path] if exists(path) else []
    chosen = [test for folder, tests in PYTHON_TESTS.items() if path.startswith(folder) for test in tests]
    if path.endswith(".md"):
        chosen.append("tests/docs")
    if path.startswith("tests/") and path.endswith(".py"):
        chosen.append(os.path.dirname(path))
    return chosen


def without_nested(paths):
    """Each path once, and none that lies in another's folder."""
    paths = set(paths)
    return sorted(path for path in paths if not any(path.startswith(other + "/") for other in paths))


def choose(files, exists):
    """The Bazel patterns and the Python tests of the changed files. exists: whether a path of the tree is there."""
    patterns = {pattern for path in files for pattern in bazel_patterns(path, exists)}
    tests = without_nested(test for path in files for test in python_tests(path, exists))
    return (["//..."] if "//..." in patterns else sorted(patterns)), tests


def main():
    files = [line.strip() for line in sys.stdin if line.strip()]
    patterns, tests = choose(files, lambda path: os.path.exists(os.path.join(ROOT, path)))
    for pattern in patterns:
        print("bazel", pattern)
    for test in tests:
        print("python", test)


if __name__ == "__main__":
    main()
