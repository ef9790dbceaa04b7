"""Compares what berth-cli load and ghz measure of the same requests: calls a second, and the mean time of a call. Run by
`./dev bench ghz`. Exits with 1 if the medians differ by more than 5 %.

Both call one server with the demo model, one call at a time, and take turns. Only whole calls can be compared, because
ghz learns the calls by reflection and knows nothing of tokens. It decodes each message by reflection: with many calls
at once on few cores, that takes time from the server, and ghz measures itself.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))

from berth_server import BIN, ROOT, BerthServer  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
PROMPT = "Once upon a time there was a fox"
TOKENS = 64
REQUEST = {"prompt": PROMPT, "sampling": {"temperature": 0}, "stopping": {"max_tokens": TOKENS, "ignore_eos": True}}
LIMIT = 0.05


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{program} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def of_berth_cli(server, calls, concurrency, folder):
    """Calls a second, and the seconds of a call."""
    prompts, out = os.path.join(folder, "prompts"), os.path.join(folder, "load.json")
    with open(prompts, "w", encoding="utf-8") as file:
        file.write(PROMPT + "\n")
    run(os.path.join(BIN, "client/berth-cli"), "load", f"--server={server.address}", f"--requests={calls}",
        f"--concurrency={concurrency}", f"--prompt_file={prompts}", f"--output_tokens=fixed:{TOKENS}",
        f"--json_out={out}")
    with open(out, encoding="utf-8") as file:
        report = json.load(file)
    return report["throughput"]["requests_per_second"], report["latency_seconds"]["e2e"]["mean"]


def of_ghz(ghz, server, calls, concurrency):
    report = json.loads(run(ghz, "--insecure", "--call=berth.v1.Inference.Generate", f"--data={json.dumps(REQUEST)}",
                            f"--total={calls}", f"--concurrency={concurrency}", "--format=json", server.address))
    assert report["statusCodeDistribution"] == {"OK": calls}, report["statusCodeDistribution"]
    return report["rps"], report["average"] / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ghz", required=True, help="the program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="of each tool in a round")
    parser.add_argument("--concurrency", type=int, default=1)
    arguments = parser.parse_args()
    results = {"berth-cli load": [], "ghz": []}
    with BerthServer(DEMO, "--log_level=warning") as server, tempfile.TemporaryDirectory() as folder:
        of_ghz(arguments.ghz, server, arguments.calls, arguments.concurrency)  # warms the server up
        for _ in range(arguments.rounds):
            results["berth-cli load"].append(of_berth_cli(server, arguments.calls, arguments.concurrency, folder))
            results["ghz"].append(of_ghz(arguments.ghz, server, arguments.calls, arguments.concurrency))
    print("| tool | calls/s | mean time of a call, ms |\n|---|---|---|")
    medians = {}
    for tool, rounds in results.items():
        medians[tool] = [statistics.median(values) for values in zip(*rounds)]
        print(f"| {tool} | {medians[tool][0]:.1f} | {1000 * medians[tool][1]:.2f} |")
    ratios = [a / b for a, b in zip(medians["berth-cli load"], medians["ghz"])]
    print(f"ratios: {ratios[0]:.3f}, {ratios[1]:.3f}")
    if any(abs(ratio - 1) > LIMIT for ratio in ratios):
        sys.exit(f"they differ by more than {LIMIT:.0%}")


if __name__ == "__main__":
    main()
