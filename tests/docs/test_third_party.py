"""THIRD_PARTY.md names every dependency that a lock file, a requirements file or a script of tools/dev names."""

import json
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


@pytest.mark.parametrize("requirements", ["tools/parity/requirements.txt", "bench/peers/requirements.txt",
                                          "bench/peers/openvino-requirements.txt", "bench/peers/requirements-vllm.txt",
                                          "bench/peers/requirements-ctranslate2.txt",
                                          "tests/clients/requirements.txt", "tests/clients/requirements-lm-eval.txt",
                                          "tests/gateway/requirements.txt", "tests/gateway/requirements-guidellm.txt"])
def test_third_party_lists_every_python_package(requirements):
    for line in read(requirements).split():
        name, _, version = line.partition("==")
        assert re.search(rf"^\| {re.escape(name)}(, [^|]*)? \| {re.escape(version)}", read("THIRD_PARTY.md"), re.M), line


def test_third_party_lists_every_debian_package():
    lists = re.findall(r"^(?:\w+_)?APT_PACKAGES=\((.*?)\)", read("tools/dev/common.sh"), re.M | re.S)
    assert len(lists) == 4
    for listed in lists:
        for package in re.sub(r'"\S+"', "", listed).split():
            known = package in read("THIRD_PARTY.md") or package in PACKAGES_WITHOUT_A_ROW
            assert known or re.match(r"bazel-rules-", package), package


def test_third_party_lists_every_go_module():
    tools = re.findall(r"([\w./-]+)/cmd/[\w-]+@v([\d.]+)", read("tools/dev/install.sh"))
    assert len(tools) == 5
    needed = re.findall(r"^(?:require)?\s+([\w./-]+) v([\w.-]+)(?: // indirect)?$", read("tests/clients/go/go.mod"), re.M)
    assert len(needed) >= 2
    for module, version in tools + needed:
        assert f"| Go module {module} | {version} |" in read("THIRD_PARTY.md"), module


def test_third_party_lists_every_node_package():
    for folder in ("tests/clients/node", "tests/published"):
        packages = json.loads(read(f"{folder}/package-lock.json"))["packages"]
        assert len(packages) > 2
        for path, package in packages.items():
            if path:
                name = path.rpartition("node_modules/")[2]
                assert f"| {name} | {package['version']} | {package['license']} |" in read("THIRD_PARTY.md"), name


def test_lock_files_name_no_registry():
    for path in ("tests/clients/node/package-lock.json", "tests/published/package-lock.json", "tests/clients/go/go.mod",
                 "tests/clients/go/go.sum"):
        assert "resolved" not in read(path) and "registry" not in read(path), path


# Parts of a row's package, and what installs the others.
PACKAGES_WITHOUT_A_ROW = {"protobuf-compiler", "protobuf-compiler-grpc", "libprotobuf-dev", "python3-pip", "python3-venv",
                          "ca-certificates"}
