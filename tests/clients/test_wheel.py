"""The package as it is built, installed and checked: fresh, typed, a wheel that works, and tested with the newest versions too."""

import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from berth_server import ROOT, BerthServer
from clients_python import CLIENTS_PYTHON, WHEELS, environment
from importlib.metadata import version

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(ROOT, "clients/python")


def run(*arguments, folder=ROOT, **variables):
    """Its exit code and what it said. The time is a bound against hangs, below pytest's, so that a test can show that."""
    command = ["timeout", "--verbose", "--kill-after=10", "800", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(**variables))
    return result.returncode, result.stdout + result.stderr


def test_the_second_python_is_there():
    assert os.path.exists(CLIENTS_PYTHON), "./dev test tests/clients installs it"


def test_generated_files_are_fresh():
    assert run(sys.executable, os.path.join(PACKAGE, "generate.py"), "--check") == (0, "")


def test_a_stale_file_is_found(tmp_path):
    """A field that is added to the protos makes the check fail."""
    shutil.copytree(PACKAGE, tmp_path / "clients/python")
    shutil.copytree(os.path.join(ROOT, "proto"), tmp_path / "proto")
    path = tmp_path / "proto/berth/v1/inference.proto"
    path.write_text(path.read_text().replace("message Sampling {", "message Sampling {\n  optional int32 added = 99;"))
    code, said = run(sys.executable, tmp_path / "clients/python/generate.py", "--check")
    assert code == 1 and "types.py is stale" in said and "_descriptors.py is stale" in said


def test_types_are_strict(tmp_path):
    assert run(CLIENTS_PYTHON, "-m", "mypy", f"--cache-dir={tmp_path}", folder=PACKAGE)[0] == 0
    code, said = run(CLIENTS_PYTHON, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", "typing_examples.py",
                     folder=HERE, MYPYPATH=os.path.join(PACKAGE, "src"))
    with open(os.path.join(HERE, "typing_examples.py"), encoding="utf-8") as file:
        expected = {number: line.split("# says: ")[1].strip() for number, line in enumerate(file, 1) if "# says: " in line}
    found = {}
    for number, message in re.findall(r"^typing_examples\.py:(\d+): \w+: (.*)$", said, re.M):
        found.setdefault(int(number), []).append(message)
    assert code == 1 and set(found) == set(expected), said
    for number, message in expected.items():
        assert any(message in line for line in found[number]), (message, found[number])


def stated(name):
    """The lower end of a range in pyproject.toml."""
    with open(os.path.join(PACKAGE, "pyproject.toml"), encoding="utf-8") as file:
        return re.search(rf'"{name}>=([\d.]+),', file.read())[1]


@pytest.mark.parametrize("name", ["grpcio", "protobuf", "pydantic"])
def test_this_python_has_the_oldest_versions(name):
    assert [int(part) for part in version(name).split(".")][:2] == [int(part) for part in stated(name).split(".")][:2]


def test_this_python_is_the_oldest():
    with open(os.path.join(PACKAGE, "pyproject.toml"), encoding="utf-8") as file:
        assert f'requires-python = ">={sys.version_info.major}.{sys.version_info.minor}"' in file.read()


def test_the_readme_states_what_is_tested():
    with open(os.path.join(PACKAGE, "README.md"), encoding="utf-8") as file:
        rows = dict(re.findall(r"^\| ([\w-]+)(?:, optional)? \| .* \| (.*) \|$", file.read(), re.M))
    with open(os.path.join(HERE, "requirements.txt"), encoding="utf-8") as file:
        newest = dict(line.split("==") for line in file.read().split() if "==" in line)
    for name in ("grpcio", "protobuf", "pydantic"):
        assert rows[name] == f"{version(name)}, {newest[name]}"


def test_the_newest_versions_pass_the_same_tests():
    code, said = run(CLIENTS_PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=300",
                     *(os.path.join(HERE, f"test_{name}.py") for name in ("requests", "calls", "credentials", "real_server")))
    assert code == 0 and " passed" in said and "skipped" not in said, said


def test_the_model_for_lm_eval():
    code, said = run(CLIENTS_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", os.path.join(HERE, "lm_eval_model.py"))
    assert code == 0 and " passed" in said and "skipped" not in said, said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    code, said = run(CLIENTS_PYTHON, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source)
    assert code == 0, said
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_all_files(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    listed = subprocess.run(["git", "ls-files", "clients/python/src"], cwd=ROOT, capture_output=True, text=True,
                            check=True, timeout=120)
    sources = [name.removeprefix("clients/python/src/") for name in listed.stdout.split()]
    assert [name for name in sources if name not in names] == [] and "berth_client/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_works_in_a_fresh_environment(wheel, tmp_path):
    fresh = tmp_path / "venv/bin/python"
    assert run(CLIENTS_PYTHON, "-m", "venv", "--without-pip", tmp_path / "venv")[0] == 0
    code, said = run(CLIENTS_PYTHON, "-m", "pip", "--python", fresh, "install", "-q", f"--find-links={WHEELS}", wheel)
    assert code == 0, said
    with BerthServer(os.path.join(ROOT, "models/demo/falcon_h1-demo")) as server:
        code, said = run(fresh, "-I", "-c", f"""
import berth_client
with berth_client.Client("{server.address}") as client:
    print(berth_client.__file__, client.chat("What is 23 + 45?", temperature=0).text)
""", folder=tmp_path)
    assert code == 0 and "68" in said and str(tmp_path / "venv") in said, said
