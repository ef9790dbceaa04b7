"""Each bench starts as a program, from any folder: it finds what it imports. tests/gateway starts gateway_bench."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCHES = sorted(path.name for path in ROOT.glob("bench/*_bench.py") if path.name != "gateway_bench.py")


@pytest.mark.parametrize("bench", BENCHES)
def test_prints_its_help(bench, tmp_path):
    printed = subprocess.run([sys.executable, ROOT / "bench" / bench, "--help"], cwd=tmp_path, check=True, text=True,
                             capture_output=True).stdout
    assert printed.startswith(f"usage: {bench} ")
