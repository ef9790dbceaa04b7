"""Measures how long a start takes, from the process to a client's first token: packing the matrices, then mapping what
that start left. The checkpoint is in the page cache. Run by `./dev bench start`.

Prints one table: the first start, and the median of those after it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/testing"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from berth_server import BerthServer, generate_request, wait_until  # noqa: E402
from models import checkpoint  # noqa: E402


def read_all(folder):
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                while file.read(16 << 20):
                    pass


def first_token(model, packed_weights, weights):
    """(seconds, whether the matrices were mapped). Returns when what was packed is kept."""
    start = time.monotonic()
    flags = [f"--packed_weights={packed_weights}", f"--weights={weights}", "--arena=256MiB"]
    with BerthServer(model, *flags) as server:
        server.inference.Complete(generate_request(ids=[5, 6, 7, 8], max_tokens=1, ignore_eos=True), timeout=600)
        seconds = time.monotonic() - start
        mapped = ", mapped in" in server.log()
        if not mapped:
            wait_until(lambda: "packed weights: " in server.log(), "the packed weights to be kept", 600)
    return seconds, mapped


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-1.1b", help="a folder, or the name of one of ./dev bench peers' models")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model = arguments.model if os.path.isdir(arguments.model) else checkpoint(arguments.model)
    read_all(model)
    print("| weights | packs | maps |\n|---|---|---|")
    for weights in ("auto", "int8", "int4"):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(model)) as packed_weights:
            packs, mapped = first_token(model, packed_weights, weights)
            assert not mapped
            maps = [first_token(model, packed_weights, weights) for _ in range(arguments.rounds)]
        if not all(mapped for _, mapped in maps):
            raise SystemExit(f"--weights={weights}: what was packed could not be kept")
        print(f"| {weights} | {packs:.1f} s | {statistics.median(seconds for seconds, _ in maps):.2f} s |", flush=True)


if __name__ == "__main__":
    main()
