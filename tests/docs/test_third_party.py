"""THIRD_PARTY.md names every dependency that a lock file, a requirements file or `dev` names."""

import os
import re

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def crates():
    return re.findall(r'^name = "(.*)"\nversion = "(.*)"$', read("text/crate/Cargo.lock"), re.M)


def test_third_party_lists_every_crate():
    listed = read("THIRD_PARTY.md")
    missing = [(name, version) for name, version in crates()
               if name != "berth_text" and f"\n| {name} | {version} | " not in listed]
    assert missing == [], "third_party/list_crates.py --write adds them"
    assert listed.count("\n| ") > len(crates()) > 100


@pytest.mark.parametrize("requirements", ["tests/oracle-requirements.txt", "tests/bench/peers/requirements.txt"])
def test_third_party_lists_every_python_package(requirements):
    for line in read(requirements).split():
        name, _, version = line.partition("==")
        assert re.search(rf"^\| {re.escape(name)}(, [^|]*)? \| {re.escape(version)}", read("THIRD_PARTY.md"), re.M), line


def test_third_party_lists_every_debian_package():
    for variable in ("APT_PACKAGES", "TEST_APT_PACKAGES"):
        (listed,) = re.findall(rf"^{variable}=\((.*?)\)", read("dev"), re.M | re.S)
        for package in listed.split():
            known = package in read("THIRD_PARTY.md") or package in PACKAGES_WITHOUT_A_ROW
            assert known or re.match(r"bazel-rules-", package), package


# Parts of a row's package, and what installs the others.
PACKAGES_WITHOUT_A_ROW = {"protobuf-compiler", "protobuf-compiler-grpc", "libprotobuf-dev", "python3-pip", "python3-venv",
                          "ca-certificates"}
