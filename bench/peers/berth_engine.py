"""Berth as an engine like those of worker.py, measured as its clients see it. It is the real server, over gRPC,
measured by the times at which streamed tokens arrive (`berth-cli load`). Prompts are token ids, prefix sharing is off,
and end tokens are ignored.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/testing"))

import grpc  # noqa: E402
from berth_server import BIN, BerthServer, DidNotStart, generate_request  # noqa: E402
from worker import Failed  # noqa: E402

CLI = os.path.join(BIN, "client/berth-cli")
NUM_LOGPROBS = 20
WRITE_SECONDS = 120


class NotBuiltIn(Failed):
    """The server does not know, or refuses, these weights."""


def start(path, threads, weights, flags=(), max_tokens=2304, arena_gib=2):
    """A started server of float32, bf16, int8 or int4 weights."""
    quantised = [f"--weights={weights}"] if weights.startswith("int") else []
    dtype = "float32" if weights == "float32" else "bfloat16"
    server = BerthServer(str(path), f"--threads={threads}", f"--dtype={dtype}", "--share_prefixes=false",
                         f"--arena={arena_gib}GiB", f"--max_sequence_tokens={max_tokens}", "--log_level=warning", *quantised,
                         *flags,
                         expect_clean_exit=False)  # what ended it early is reported by the call that failed
    try:
        started = server.__enter__()
        wait_for_packed_weights(path)
        return started
    except (AssertionError, DidNotStart) as error:
        said = str(error).strip().splitlines() or ["nothing was said"]
        if quantised and isinstance(error, DidNotStart) and "weights" in str(error):
            raise NotBuiltIn(said[-1]) from error
        raise Failed(f"berth-server did not start: {said[-1]}") from error


def wait_for_packed_weights(path):
    """A first start writes its packed weights beside the first requests, whose memory and cores that takes, and the
    system continues with it after the file is there."""
    deadline = time.monotonic() + WRITE_SECONDS
    while any(pathlib.Path(path, ".berth").glob("*.part")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.sync()


class Engine:
    def __init__(self, path, threads, weights, flags=(), **size):
        """size: max_tokens of a sequence, and arena_gib."""
        self.server = start(path, threads, weights, flags, **size)
        # Asked at once: the server ends connections that are idle for as long as the other engines' turns take.
        self.cache_groups = self.server.model_info().cache_groups

    @property
    def pid(self):
        return self.server.process.pid

    def close(self):
        self.server.__exit__(None, None, None)

    def greedy(self, prompt, tokens):
        """Its own answer: [tokens], and of each place {token: logprob} of the likeliest."""
        request = generate_request(ids=prompt, max_tokens=tokens, ignore_eos=True, logprobs=NUM_LOGPROBS)
        try:
            answer = self.server.inference.Complete(request, timeout=600)
        except grpc.RpcError as error:
            raise Failed(f"berth-server: {error.code().name}: {error.details()}") from error
        return list(answer.token_ids), [{top.token_id: top.logprob for top in place.top} for place in answer.logprobs]

    def load(self, streams, prompt_tokens, output_tokens):
        command = [CLI, "load", f"--server={self.server.address}", f"--concurrency={streams}", f"--requests={streams}",
                   f"--prompt_tokens=fixed:{prompt_tokens}", f"--output_tokens=fixed:{output_tokens}",
                   "--progress=false", "--json_out=-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            failure = next((line.strip() for line in said if line.startswith("  failed")), said[-1])
            raise Failed(f"berth-cli load: {failure}")
        return json.loads(done.stdout)

    def decode(self, streams, prompt_tokens, steps):
        # One token more, whose step may still hold some stream's prompt.
        rate = self.load(streams, prompt_tokens, steps + 2)["throughput"]["steady_tokens_per_second"]
        if rate is None:
            raise Failed("the streams did not overlap: more steps are needed")
        return rate

    def prefill(self, tokens):
        return self.load(1, tokens, 1)["latency_seconds"]["ttft"]["mean"]

    def decode_steps(self):
        """(seconds in all, number) of the steps that only decoded, since the start."""
        with urllib.request.urlopen(f"http://{self.server.metrics_address}/metrics", timeout=30) as page:
            text = page.read().decode()

        def value(part):
            return float(re.search(rf'^berth_step_seconds_{part}\{{[^}}]*phase="decode"[^}}]*\}} (\S+)$', text, re.M)[1])

        return value("sum"), value("count")
