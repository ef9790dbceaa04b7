"""Measures the bundled model as a user meets it: start-up to first token, then 1 and 32 streams. Run by `./dev bench`.

Prints one table; medians over the rounds, because machines are shared. Standard library only.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
SERVER = os.path.join(ROOT, "bazel-bin/server/berth-server")
CLI = os.path.join(ROOT, "bazel-bin/client/berth-cli")


class Server:
    def __init__(self, model, flags=()):
        self.folder = tempfile.TemporaryDirectory()
        port_file = os.path.join(self.folder.name, "ports")
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [SERVER, f"--model={model}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
             f"--port_file={port_file}", "--log_level=warning", *flags])
        while not os.path.exists(port_file):
            if self.process.poll() is not None:
                raise SystemExit("berth-server did not start")
            time.sleep(0.001)
        with open(port_file) as file:
            self.address = f"127.0.0.1:{json.load(file)['grpc']}"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        self.folder.cleanup()


def cli(*arguments):
    return subprocess.run([CLI, *arguments], check=True, capture_output=True, text=True).stdout


def start_to_first_token(model):
    server = Server(model)
    cli("generate", f"--server={server.address}", "--prompt=Hello", "--max_tokens=1")
    seconds = time.monotonic() - server.start
    server.stop()
    return seconds


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
    server = Server(arguments.model)
    for streams in (1, 32):
        load(server.address, streams, streams, 16)  # warm
        rounds = [load(server.address, streams, 2 * streams, arguments.tokens) for _ in range(arguments.rounds)]
        rate, ttft, tpot = (statistics.median(column) for column in zip(*rounds))
        print(f"{streams:2d} streams: {rate:9.0f} tokens/s   TTFT p50 {ttft * 1000:7.1f} ms   "
              f"time per token p50 {tpot * 1000:6.2f} ms")
    server.stop()


if __name__ == "__main__":
    main()
