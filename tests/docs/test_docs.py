"""Runs the commands of README.md against a server, so that the documents cannot promise what does not work."""

import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/testing"))
from berth_server import BerthServer  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CLI = "bazel-bin/client/berth-cli"


def commands_of(path):
    """The lines of every ```sh block."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        blocks = re.findall(r"^```sh\n(.*?)^```", file.read(), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO) as server:
        yield server


README_COMMANDS = commands_of("README.md")


@pytest.mark.parametrize("command", [c for c in README_COMMANDS if c.startswith((CLI, "curl"))])
def test_readme_commands_work(server, command):
    # The README's addresses are the defaults; the test's server took free ports.
    command = command.replace("127.0.0.1:8601", server.metrics_address)
    if command.startswith(CLI):
        command += f" --server={server.address}"
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_readme_addition_is_right(server):
    command = next(c for c in README_COMMANDS if "What is 23 + 45?" in c)
    result = subprocess.run(f"{command} --server={server.address}", shell=True, cwd=ROOT, capture_output=True, text=True,
                            timeout=60)
    assert "68" in result.stdout


def test_every_other_readme_command_is_one_of_dev_or_grpcurl():
    """What is not run above is run by CI itself (./dev), or needs a tool that Debian lacks (grpcurl)."""
    rest = [c for c in README_COMMANDS if not c.startswith((CLI, "curl"))]
    assert all(c.startswith(("./dev serve", "./dev test", "grpcurl ")) for c in rest), rest


def test_dev_lists_its_commands():
    help_text = subprocess.run(["./dev", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"^cmd_(\w+)\(\)", open(os.path.join(ROOT, "dev"), encoding="utf-8").read(), re.M):
        assert name == "help" or f"./dev {name}" in help_text


def test_files_that_documents_link_to_exist():
    for document in ("README.md", "ARCHITECTURE.md", "CONVENTIONS.md"):
        with open(os.path.join(ROOT, document), encoding="utf-8") as file:
            text = file.read()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert os.path.exists(os.path.join(ROOT, target)), f"{document} links to {target}"


def test_readme_table_of_architectures_is_the_binarys():
    table = subprocess.run(["bazel-bin/server/berth-server", "--list_models"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        assert table in file.read()
