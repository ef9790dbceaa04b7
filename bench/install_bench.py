"""Measures what a newcomer waits for: from the wheel to the demo model's first token. Run by `./dev bench install`.

Makes the package, installs the wheel into a new virtual environment without the network, starts berth-server as pip
installed it, and asks for one token. Prints the time of each step, and the sizes. Exits with 1 if installing, starting
and answering take LIMIT_SECONDS or more. The download is not counted: the wheel's size says what it takes.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/testing"))
import berth_server  # noqa: E402

LIMIT_SECONDS = 60
MEBIBYTE = 1 << 20


def timed(name, action):
    """What the action returns, and its seconds, which are printed."""
    start = time.monotonic()
    result = action()
    seconds = time.monotonic() - start
    print(f"| {name} | {seconds:.1f} s |", flush=True)
    return result, seconds


def first_token(server):
    """Starts the installed server and waits for one token of the demo model."""
    berth_server.SERVER = str(server)
    with berth_server.BerthServer("") as running:
        request = berth_server.generate_request(prompt="Hello", max_tokens=1, ignore_eos=True)
        next(iter(running.inference.Generate(request, timeout=60)))
        return time.monotonic()


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        print("| step | takes |\n|---|---|")
        timed("making the package", lambda: subprocess.run(
            [sys.executable, ROOT / "deploy/package.py", f"--out={folder}"], check=True, stdout=subprocess.DEVNULL))
        timed("making a virtual environment", lambda: subprocess.run(
            [sys.executable, "-m", "venv", folder / "venv"], check=True))
        (wheel,) = folder.glob("*.whl")
        berth_server.api()  # the client's code, which a user has
        start = time.monotonic()
        timed("pip install", lambda: subprocess.run(
            [folder / "venv/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel], check=True))
        end, _ = timed("start, first token and stop", lambda: first_token(folder / "venv/bin/berth-server"))
        print(f"| **from the wheel to the first token** | {end - start:.1f} s |")
        for archive in sorted(folder.glob("berth*")):
            print(f"| {archive.name} | {os.path.getsize(archive) / MEBIBYTE:.1f} MiB |")
        if end - start >= LIMIT_SECONDS:
            raise SystemExit(f"{end - start:.1f} s, not under {LIMIT_SECONDS}")


if __name__ == "__main__":
    main()
