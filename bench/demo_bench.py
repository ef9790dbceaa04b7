"""Measures the bundled model as a user meets it: start-up to first token, then 1 and 32 streams. Run by `./dev bench`.

Prints one table; medians over the rounds, because machines are shared. Standard library only.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
SERVER = os.path.join(ROOT, "bazel-bin/server/berth-server")
START_SECONDS = 600  # a first start packs the model's weights
CLI = os.path.join(ROOT, "bazel-bin/client/berth-cli")


@contextlib.contextmanager
def serving(model, flags=()):
    """The server's address. It ends with the context."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = os.path.join(folder, "ports")
        process = subprocess.Popen(
            [SERVER, f"--model={model}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
             f"--port_file={port_file}", "--log_level=warning", *flags])
        try:
            deadline = time.monotonic() + START_SECONDS
            while not os.path.exists(port_file):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("berth-server did not start")
                time.sleep(0.001)
            with open(port_file) as file:
                ports = json.load(file)
            yield f"127.0.0.1:{ports['grpc']}"
        finally:
            end(process)


def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cli(*arguments):
    done = subprocess.run([CLI, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"berth-cli {arguments[0]} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def start_to_first_token(model):
    start = time.monotonic()
    with serving(model) as address:
        cli("generate", f"--server={address}", "--prompt=Hello", "--max_tokens=1")
        return time.monotonic() - start


def load(address, streams, requests, tokens):
    report = json.loads(cli("load", f"--server={address}", f"--concurrency={streams}", f"--requests={requests}",
                            "--prompt_tokens=fixed:32", f"--output_tokens=fixed:{tokens}", "--json_out=-"))
    return (report["throughput"]["output_tokens_per_second"], report["latency_seconds"]["ttft"]["p50"],
            report["latency_seconds"]["tpot"]["p50"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=os.path.join(ROOT, "models/demo/falcon_h1-demo"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256, help="output tokens per request")
    arguments = parser.parse_args()

    first = [start_to_first_token(arguments.model) for _ in range(arguments.rounds)]
    print(f"start-up to first token      {statistics.median(first) * 1000:8.0f} ms")
    with serving(arguments.model) as address:
        for streams in (1, 32):
            load(address, streams, streams, 16)  # warm
            rounds = [load(address, streams, 2 * streams, arguments.tokens) for _ in range(arguments.rounds)]
            rate, ttft, tpot = (statistics.median(column) for column in zip(*rounds))
            print(f"{streams:2d} streams: {rate:9.0f} tokens/s   TTFT p50 {ttft * 1000:7.1f} ms   "
                  f"time per token p50 {tpot * 1000:6.2f} ms")


if __name__ == "__main__":
    main()
