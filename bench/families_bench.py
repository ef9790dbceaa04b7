"""Measures every family on parity's tiny checkpoints: tokens per second for 1 and 16 streams. Run by
`./dev bench families`.

The models are so small that a row shows what a step costs beside the products: launches, kernels, the scheduler. It is
there to be compared with itself over time, not with other engines. Medians over the rounds.
"""

import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tools/parity"))

import oracle  # noqa: E402
from cases import CASES  # noqa: E402
from demo_bench import load, serving  # noqa: E402


def families():
    """{model_type: the checkpoint of its first case}"""
    checkpoints = {}
    for name in CASES:
        folder = oracle.load(name)[0]
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
        checkpoints.setdefault(model_type, folder)
    return dict(sorted(checkpoints.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="model types; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per request")
    arguments = parser.parse_args()
    print(f"{'model_type':20}{'1 stream':>12}{'16 streams':>12}  tokens/s", flush=True)
    for model_type, folder in families().items():
        if arguments.families and model_type not in arguments.families:
            continue
        rates = []
        with serving(folder, ["--max_sequence_tokens=400"]) as address:
            for streams in (1, 16):
                load(address, streams, streams, 16)  # warm
                rounds = [load(address, streams, 4 * streams, arguments.tokens)[0] for _ in range(arguments.rounds)]
                rates.append(statistics.median(rounds))
        print(f"{model_type:20}{rates[0]:12.0f}{rates[1]:12.0f}", flush=True)


if __name__ == "__main__":
    main()
