"""The choice of `./dev test --changed`, and the counting of results."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import changed  # noqa: E402
import results  # noqa: E402

TREE = {"cache/BUILD", "cache/lease.cc", "server/BUILD", "server/config.cc", "server/api/BUILD", "server/api/validation.cc",
        "tests/e2e/test_server.py", "tests/docs/lint_text.py", "models/kernels/BUILD", "models/kernels/cpu/BUILD",
        "models/kernels/cpu/exp.inc", "README.md", "berth.bzl"}


def choose(*files):
    return changed.choose(files, TREE.__contains__)


def test_a_source_concerns_its_dependents():
    assert choose("cache/lease.cc") == (["//cache:lease.cc"], ["tests/e2e"])
    assert choose("models/kernels/cpu/exp.inc")[0] == ["//models/kernels/cpu:exp.inc"]


def test_a_removed_file_and_a_build_file_concern_their_package():
    assert choose("server/api/gone.cc")[0] == ["//server/api:all"]
    assert choose("cache/BUILD")[0] == ["//cache:all"]


def test_the_rules_concern_everything():
    assert choose("berth.bzl", "cache/lease.cc")[0] == ["//..."]


def test_a_python_test_concerns_itself_and_a_helper_its_folder():
    assert choose("tests/e2e/test_server.py") == ([], ["tests/e2e/test_server.py"])
    assert choose("tests/docs/lint_text.py") == ([], ["tests/docs"])


def test_a_folder_stands_for_its_files():
    assert choose("tests/e2e/test_server.py", "cache/lease.cc")[1] == ["tests/e2e"]


def test_documents_concern_their_tests():
    assert choose("README.md") == ([], ["tests/docs"])


def test_the_folders_of_the_table_exist():
    root = changed.ROOT
    for folder, tests in changed.PYTHON_TESTS.items():
        for path in [folder, *tests]:
            assert os.path.exists(os.path.join(root, path)), path


def test_bazel_events_are_counted():
    events = ['{"id":{"testSummary":{"label":"//a:x"}},"testSummary":{"overallStatus":"PASSED"}}',
              '{"id":{"testSummary":{"label":"//a:y"}},"testSummary":{"overallStatus":"TIMEOUT"}}',
              '{"id":{"progress":{}},"progress":{}}']
    assert results.bazel_results(events) == (["//a:x"], ["//a:y"])


def test_pytest_cases_are_counted():
    xml = """<testsuites><testsuite><testcase classname="m" name="good"/>
        <testcase classname="m" name="bad"><failure/></testcase>
        <testcase classname="m" name="left"><skipped/></testcase></testsuite></testsuites>"""
    assert results.pytest_results(xml) == (["m.good"], ["m.bad"])


def test_parity_cases_are_counted():
    lines = ["case                           alone        logits", "llama                          ok 5          ok 9",
             "mamba2                       2 MISS             -", "    alone: prompt of 3: token 1 is 4", "MISS mamba2, alone: x",
             "2 comparisons, 0 ties (margin below 0.0001), 2 misses"]
    assert results.parity_results(lines) == (["llama"], ["mamba2"])


def test_a_step_that_left_no_file_has_no_results(tmp_path):
    assert results.read("bazel", str(tmp_path / "none")) == ([], [])
