"""Says how many tests of a step passed, and names those that failed. `./dev test` calls it after each step.

    results.py bazel EVENTS    reads the file of --build_event_json_file
    results.py pytest XML      reads the file of --junitxml
    results.py parity LOG      reads the output of tests/parity/run.py

Prints the number that passed, then each failed test on a line of its own. A cached pass counts as a pass. A missing or
empty file gives 0.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree

PASSED = ("PASSED", "FLAKY")


def bazel_results(lines):
    """The targets of the tests that passed, and of those that did not. lines: JSON, one event each."""
    passed, failed = [], []
    for line in lines:
        event = json.loads(line)
        if "testSummary" in event:
            status = event["testSummary"]["overallStatus"]
            (passed if status in PASSED else failed).append(event["id"]["testSummary"]["label"])
    return passed, failed


def pytest_results(text):
    """A skipped test counts as neither."""
    passed, failed = [], []
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name')}".lstrip(".")
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(name)
        elif "skipped" not in kinds:
            passed.append(name)
    return passed, failed


def parity_results(lines):
    """Each checkpoint of the table is a test; it fails on a miss in any column."""
    passed, failed = [], []
    for line in lines:
        if re.match(r"\S+ +(ok \d|\d+ MISS|- )", line):
            (failed if " MISS" in line else passed).append(line.split()[0])
    return passed, failed


def read(kind, path):
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return [], []
    with open(path, encoding="utf-8") as file:
        if kind == "bazel":
            return bazel_results(file)
        return pytest_results(file.read()) if kind == "pytest" else parity_results(file)


def main():
    passed, failed = read(*sys.argv[1:])
    print(len(passed))
    for name in failed:
        print(name)


if __name__ == "__main__":
    main()
