"""The tests of a step that passed, and those that failed, from the file that the step leaves: of Bazel, pytest or parity.

A cached pass counts as a pass. A missing or empty file has no tests.
"""

import json
import os
import re
import xml.etree.ElementTree

PASSED = ("PASSED", "FLAKY")


def bazel_results(lines):
    """The targets of the tests that passed, and of those that did not. lines: JSON, one event each."""
    passed, failed = [], []
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:  # the last line of a run that was ended
            break
        if "testSummary" in event:
            status = event["testSummary"]["overallStatus"]
            (passed if status in PASSED else failed).append(event["id"]["testSummary"]["label"])
    return passed, failed


def pytest_results(text):
    """A skipped test counts as neither."""
    passed, failed = [], []
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name')}".lstrip(".")
        name = re.sub(r"@tests/\S*$", "", name)  # its group of tests/conftest.py
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


def parity_unreached(path):
    """The cases that parity had no time for."""
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [f"parity of {line.split()[2]}" for line in file if line.startswith("NOT REACHED ")]


def read(kind, path):
    if not path or not os.path.exists(path) or os.path.getsize(path) == 0:
        return [], []
    with open(path, encoding="utf-8") as file:
        if kind == "bazel":
            return bazel_results(file)
        return pytest_results(file.read()) if kind == "pytest" else parity_results(file)
