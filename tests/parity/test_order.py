"""The order in which a run that ends early takes the cases."""

import os
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def test_what_ran_longest_ago_comes_first(tmp_path):
    (tmp_path / "parity").mkdir()
    for name, seconds in (("llama", 300), ("mistral", 100), ("qwen2", 200)):
        lock = tmp_path / "parity" / f"{name}.lock"
        lock.touch()
        os.utime(lock, (seconds, seconds))
    run = subprocess.run(
        [sys.executable, "tools/parity/run.py", "--seconds=0", "llama", "mistral", "qwen2", "qwen3"], cwd=ROOT,
        env={**os.environ, "BERTH_CACHE": str(tmp_path)}, capture_output=True, text=True, check=True)
    named = [line.split()[2] for line in run.stdout.splitlines() if line.startswith("NOT REACHED ")]
    assert named == ["qwen3", "mistral", "qwen2", "llama"]
