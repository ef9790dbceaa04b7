"""The package of `./dev package`, made once for all tests, and the minimal Debian systems that `dev` has set up."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("BERTH_CACHE", pathlib.Path.home() / ".cache/berth"))


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """The folder with both archives."""
    folder = tmp_path_factory.mktemp("package")
    folder.chmod(0o755)  # for tests as another user
    subprocess.run([sys.executable, ROOT / "deploy/package.py", f"--out={folder}"], check=True, timeout=7200)
    return folder


@pytest.fixture(scope="session")
def in_root():
    """Runs a command as in_root.py does, in the system `suite` (None: this one), and returns what it printed."""

    def run(suite, command, *options):
        root = [f"--root={CACHE}/roots/{suite}"] if suite else []
        result = subprocess.run([sys.executable, ROOT / "tests/deploy/in_root.py", *root, *options, command],
                                capture_output=True, text=True, timeout=7200)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run
