"""Runs what the documents say about the gateway: the programs and commands that name its address."""

import glob
import os
import re
import subprocess
import sys

import pytest

from gateway_server import ROOT, GatewayServer

ADDRESS = "127.0.0.1:8602"
REFERENCE = "127.0.0.1:9602"
GUIDES = [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs/*.md")))]


def blocks(language):
    for guide in GUIDES:
        with open(guide, encoding="utf-8") as file:
            yield from re.findall(rf"^```{language}\n(.*?)^```", file.read(), re.M | re.S)


PROGRAMS = [program for program in blocks("python") if ADDRESS in program]
COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if f"http://{ADDRESS}" in line]


@pytest.fixture(scope="module")
def server():
    with GatewayServer("--chunk_invariant_scans") as server:
        yield server


@pytest.fixture(scope="module")
def reference():
    with GatewayServer("--chunk_invariant_scans", "--share_prefixes=false") as server:
        yield server


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_work(server, number):
    program = PROGRAMS[number].replace(f"http://{ADDRESS}", server.url)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    if "23 + 45" in program:
        assert "68" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work(server, reference, command):
    command = command.replace(f"http://{ADDRESS}", server.url).replace(f"http://{REFERENCE}", reference.url)
    if "conformance.py" in command:
        command += " --turns=2 --tokens=8"
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()


def test_there_is_something_to_run():
    assert len(PROGRAMS) >= 3 and len(COMMANDS) >= 2
