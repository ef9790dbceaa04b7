"""Chooses the tests of `./dev test --changed`: those that depend on a changed file."""

import os
import subprocess
import sys

import tiers

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))

# A change of these can change every target. The root's BUILD says who sees whom.
BUILDS_ALL = (".bazelrc", "BUILD", "WORKSPACE", "berth.bzl", "third_party/")

# Folders of Python tests, of both tiers.
FOLDERS = [*tiers.PYTHON_TESTS, *tiers.GATEWAY_TESTS, *tiers.GPU_TESTS, *tiers.PUBLISHED_TESTS]

# The Python tests that a change in each folder concerns, beside those in the folder itself. Each drives a built program.
PYTHON_TESTS = {
    "base/": ["tests/e2e"],
    "bench/": ["tests/bench"],
    "bench/gateway_bench.py": ["tests/gateway"],
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
    "tests/clients/": ["tests/clients"],
    "tests/conftest.py": [*tiers.PYTHON_TESTS, *tiers.GATEWAY_TESTS],
    "tests/testing/": ["tests/models", "tests/text", "tests/deploy", "tests/e2e", "tests/clients", "tests/docs",
                       "tests/bench", "tests/parity", "tests/gateway"],
    "tools/conformance/": ["tests/gateway"],
    "tools/dev/": ["tests/dev"],
    "tools/gpu/": ["tests/gpu"],
    "tools/lint/": ["tests/docs"],
    "tools/openai/": ["tests/gateway"],
    "tools/parity/": ["tests/parity", "tests/docs"],
    "docs/": ["tests/docs"],
    "flags/": ["tests/e2e", "tests/docs"],
    "dev": ["tests/dev"],
}


def exists(path):
    """Whether the path of the tree is there."""
    return os.path.exists(os.path.join(ROOT, path))


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
    if path.endswith(".py"):
        chosen += [folder for folder in FOLDERS if path.startswith(folder + "/")]
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


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            timeout=60)
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []


def files():
    """The files that differ from where this branch left main, committed or not."""
    main = git("rev-parse", "-q", "--verify", "main") or git("rev-parse", "-q", "--verify", "origin/main") or ["HEAD"]
    base = git("merge-base", main[0], "HEAD")[0]
    return git("diff", "--name-only", "--no-renames", base) + git("ls-files", "--others", "--exclude-standard")


def dependent_tests(patterns, query):
    """The Bazel tests that depend on the patterns. A pattern that no target names is passed over. `query` runs a Bazel
    query and returns its labels."""
    named = query(f"set({' '.join(patterns)})", "--keep_going") if patterns else []
    if not named:
        return []
    return query(f"""let tests = tests(//... except attr(tags, manual, //...)) in
        rdeps($tests, set({' '.join(named)})) intersect $tests""")


def chosen():
    """The Bazel patterns and the Python tests that the changes of this branch concern."""
    differ = files()
    if not differ:
        sys.exit("[dev] error: nothing differs from main; name the tests, or run the first tier: ./dev test")
    return choose(differ, exists)
