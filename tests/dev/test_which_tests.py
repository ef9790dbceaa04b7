"""Every test is in a tier of `./dev test`: what is in neither would never run."""

import os
import re
import sys

from sources import ROOT, read, tracked

sys.path.insert(0, os.path.join(ROOT, "tools/dev"))
sys.path.insert(0, os.path.join(ROOT, "tools/parity"))

import cases  # noqa: E402
import tiers  # noqa: E402

LONG = [*tiers.LONG_BAZEL_TESTS, *tiers.LONG_PYTHON_TESTS, *tiers.LONG_GATEWAY_TESTS]


def test_every_python_test_is_in_a_tier():
    folders = [*tiers.PYTHON_TESTS, *tiers.GATEWAY_TESTS, *tiers.GPU_TESTS, *tiers.PUBLISHED_TESTS]
    found = tracked(r"(.*/)?test_\w+\.py")
    assert len(found) > 30
    assert [path for path in found if not path.startswith(tuple(folder + "/" for folder in folders))] == []
    assert [folder for folder in folders if not os.path.isdir(os.path.join(ROOT, folder))] == []


def test_every_bazel_test_is_in_a_tier():
    """`bazel test //...` runs all but the manual ones, which are named."""
    manual = {f"//{os.path.dirname(path)}:{name}" for path in tracked(r"tests/.*/BUILD")
              for name in re.findall(r'test\w*\(\n    name = "(\w+)",\n(?:    .*\n)*?    tags = \["manual"\]', read(path))}
    assert manual == {*tiers.CUDA_TESTS, "//tests/fuzz:fuzz"}
    assert tiers.FUZZERS == "//tests/fuzz"


def test_every_test_with_a_long_version_is_in_the_second_tier():
    readers = {path for path in tracked(r"tests/.*\.cc|tests/.*/test_\w+\.py") if "BERTH_FULL" in read(path)}
    readers -= {"tests/fuzz/fuzz_main.cc"} | {path for path in readers if path.startswith("tests/dev/")}
    named = {name.removeprefix("//").replace(":", "/") + ".cc" if name.startswith("//") else name for name in LONG}
    assert named == readers


def test_the_first_tier_sanitizes_what_parses_and_what_has_threads():
    parsers = tiers.parsers(["//tests/server:a", "//tests/server/api:b", "//tests/servers:c", "//tests/cache:d"])
    assert parsers == ["//tests/server:a", "//tests/server/api:b"]
    assert [folder for folder in tiers.PARSERS if not os.path.isdir(os.path.join(ROOT, folder.removeprefix("//")))] == []
    for text, starts in (("std::thread worker_;", True), ("std::jthread t", True), ("std::this_thread::yield()", False)):
        assert bool(re.search(tiers.STARTS_THREAD, text)) == starts


def test_the_first_tier_has_cases_of_parity():
    assert set(cases.ONE_OF_EACH) < set(cases.CASES)
