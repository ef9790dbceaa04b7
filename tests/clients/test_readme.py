"""Every example and command of clients/python/README.md runs, against servers that stand at its addresses."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from berth_server import ROOT, BerthServer
from tls_files import make_certificates, server_credentials
from clients_python import CLIENTS_PYTHON, environment
from fake_server import FakeServer

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
with open(os.path.join(ROOT, "clients/python/README.md"), encoding="utf-8") as file:
    README = file.read()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S) for line in block.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with BerthServer(DEMO, f"--session_dir={tmp_path_factory.mktemp('sessions')}") as server:
        yield server


def run(arguments, address, folder=ROOT, **variables):
    """What it prints. The server at the documented address stands at `address`."""
    arguments = [re.sub("127.0.0.1:8600|berth.example:8600", address, argument) for argument in arguments]
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=3600,
                            env=environment(**variables))
    assert result.returncode == 0, result.stderr
    return result.stdout


def is_secure(program):
    return "berth.example" in program


@pytest.mark.parametrize("number", [number for number, program in enumerate(PROGRAMS) if not is_secure(program)])
def test_programs_work(server, number):
    printed = run([sys.executable, "-W", "error", "-c", PROGRAMS[number]], server.address)
    assert printed.strip()
    if "What is 23 + 45?" in PROGRAMS[number]:
        assert "68" in printed.splitlines()[0]
    if "error.field" in PROGRAMS[number]:
        assert printed == "sampling.top_p | sampling.top_p: 1.5 is outside (0, 1]\n"


def test_the_secure_program_works(tmp_path):
    """With the files that it names, and a server that wants a certificate of the client."""
    (program,) = filter(is_secure, PROGRAMS)
    make_certificates(tmp_path)
    with FakeServer(server_credentials(tmp_path, client_ca="ca.pem")) as server:
        run([sys.executable, "-c", program], server.address, tmp_path, BERTH_TOKEN="secret")
        ((_, _, metadata, _),) = server.requests
    assert metadata["authorization"] == "Bearer secret"


def test_commands_work(server):
    """test_wheel.py runs pip."""
    (command,) = [command for command in COMMANDS if not command.startswith("pip install ")]
    program, *arguments = shlex.split(command)
    assert program == "python"
    printed = run([CLIENTS_PYTHON, *arguments], server.address)
    for task, metric in (("berth_additions", "exact_match"), ("berth_additions_choice", "acc")):
        assert re.search(rf"\|{task} *\|.*\|{metric} *\|.* 1\|", printed), printed
