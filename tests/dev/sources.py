"""The files of this tree, for tests that read them."""

import os
import re
import subprocess

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def tracked(pattern=".*"):
    """Returns the paths that the expression matches, in order, those not added yet included."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True, timeout=60).stdout.splitlines()
    return sorted({path for path in listed if re.fullmatch(pattern, path) and os.path.isfile(os.path.join(ROOT, path))})


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()
