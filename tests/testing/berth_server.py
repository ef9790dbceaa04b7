"""Starts a berth-server for a test and talks to it. Needs grpcio and grpcio-tools."""

import contextlib
import functools
import importlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import grpc

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BIN = os.environ.get("BERTH_BIN", os.path.join(ROOT, "bazel-bin"))
SERVER = os.path.join(BIN, "server/berth-server")
# The server's alone: Python would load other libraries from there than it was built with.
LIBRARY_PATH = os.environ.get("BERTH_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
# glibc fills memory with this when it is freed, and with the opposite bits when it is allocated. So what reads memory
# that is not its own, or not yet, finds no zeros and no valid pointers. 0, as in benches: it does not.
PERTURB = {"MALLOC_PERTURB_": os.environ.get("MALLOC_PERTURB_", "165")}
# Flags of every server, before its own.
FLAGS = os.environ.get("BERTH_TEST_FLAGS", "").split()
# A sequence of this many tokens does not end by itself within hours, and its window bounds what it takes.
ENDLESS_TOKENS = 40_000_000
ENDLESS_LIMIT = 50_000_000  # tokens of prompt and output
ENDLESS_FLAGS = ["--attention_window=256", f"--max_sequence_tokens={ENDLESS_LIMIT}"]
# A server packs the weights of a new model, on a machine with other work.
START_SECONDS = 600
STOP_SECONDS = 120


def wait_until(condition, what, seconds=120):
    """Polls until the condition holds, and returns its value. Else fails with `what`: a text, or a function
    that returns one. The time is a bound against hangs, far above what a slow and busy machine needs."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what() if callable(what) else what}"
        time.sleep(0.005)
    return value


def join(threads, what, seconds=120):
    """Waits for the threads' ends. Start them as daemons, so that one that hangs does not keep the process."""
    wait_until(lambda: not any(thread.is_alive() for thread in threads), what, seconds)


def too_late(error):
    """Whether a call's deadline ended it: it passed, or the server foresaw that the first token would come after it."""
    return error.code() == grpc.StatusCode.DEADLINE_EXCEEDED or (
        error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "after the deadline in " in error.details())


SERVICES = ("inference", "control", "sessions")


@functools.cache
def api():
    """The generated modules of berth.v1: inference_pb2 and inference_pb2_grpc; control and sessions likewise."""
    packed = os.path.join(ROOT, "stubs")  # in the archive of ./dev gpu-pack
    if os.path.isdir(packed):
        return imported_from(packed)
    from grpc_tools import protoc

    # Deleted after the import, not at the end: a worker of pytest ends without its exit handlers.
    with tempfile.TemporaryDirectory(prefix="berth-stubs-") as folder:
        protos = [os.path.join(ROOT, "proto/berth/v1", f"{service}.proto") for service in SERVICES]
        arguments = [f"-I{ROOT}/proto", f"--python_out={folder}", f"--grpc_python_out={folder}", *protos]
        if protoc.main(["protoc", *arguments]) != 0:
            raise RuntimeError("protoc failed")
        return imported_from(folder)


def imported_from(folder):
    sys.path.insert(0, folder)

    class Api:
        pass

    for service in SERVICES:
        for name in (f"{service}_pb2", f"{service}_pb2_grpc"):
            setattr(Api, name, importlib.import_module(f"berth.v1.{name}"))
    return Api


def fixed_port():
    """A port for a program that cannot take port 0, or that keeps its port from start to start. It is below those that
    the kernel gives to others, so nothing else takes it meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="utf-8") as file:
        first_given = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(first_given // 2, first_given)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


FAILED_START = 1  # the exit code of a start that failed


class DidNotStart(Exception):
    """The server refused to start, and says why. Other ends, such as a crash, are errors of the test."""


def refusal(code, log):
    """The exception of a start that ended with this code."""
    return DidNotStart(log) if code == FAILED_START else AssertionError(f"the start ended with {code}\n{log}")


class BerthServer:
    """A server on free ports; `with` starts it and stops it by SIGTERM, which must end it with exit code 0."""

    def __init__(self, model, *flags, expect_clean_exit=True):
        self.flags = [f"--model={model}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", *FLAGS, *flags]
        self.expect_clean_exit = expect_clean_exit
        # An endless request reserves 160 MB for its tokens. To fill them takes as long as a step that hangs.
        perturb = {} if set(ENDLESS_FLAGS) <= set(flags) else PERTURB
        self.environment = {**os.environ, **perturb, "LD_LIBRARY_PATH": LIBRARY_PATH}

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="berth-test-")
        port_file = os.path.join(self.folder.name, "ports.json")
        self.log_path = os.path.join(self.folder.name, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([SERVER, *self.flags, f"--port_file={port_file}"], stdout=log, stderr=log,
                                            env=self.environment)
        deadline = time.monotonic() + START_SECONDS
        while not os.path.exists(port_file):
            if self.process.poll() is not None:
                raise refusal(self.process.returncode, self.end_of_log())
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"no port file after {START_SECONDS} s\n" + self.end_of_log())
            time.sleep(0.005)
        with open(port_file, encoding="utf-8") as file:
            self.ports = json.load(file)
        self.address = f"127.0.0.1:{self.ports['grpc']}"
        self.metrics_address = f"127.0.0.1:{self.ports['metrics']}"
        self.channel = grpc.insecure_channel(self.address, [("grpc.max_receive_message_length", 64 << 20)])
        self.inference = api().inference_pb2_grpc.InferenceStub(self.channel)
        self.control = api().control_pb2_grpc.ControlStub(self.channel)
        self.sessions = api().sessions_pb2_grpc.SessionsStub(self.channel)
        return self

    def __exit__(self, kind, *_):
        self.channel.close()
        died = self.process.poll()
        code = self.stop()
        log = self.end_of_log()
        if died is not None and kind is not None:
            print(f"berth-server had ended with {died}\n{log}", file=sys.stderr)
        self.folder.cleanup()
        if kind is None and self.expect_clean_exit and code != 0:
            raise AssertionError(f"berth-server ended with {code}\n{log}")

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self):
        self.process.kill()
        return self.process.wait(timeout=STOP_SECONDS)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def end_of_log(self):
        return self.log()[-4000:]

    def wait_for_log(self, words):
        wait_until(lambda: words in self.log(), lambda: f"the line {words!r} in the log\n{self.end_of_log()}")

    def load(self, timeout=60):
        return self.control.GetLoad(api().control_pb2.GetLoadRequest(), timeout=timeout)

    def model_info(self):
        return self.control.GetModelInfo(api().control_pb2.GetModelInfoRequest(), timeout=60)

    def check_it_cropped(self):
        """Checks that tokens were computed again. Without a crop, steps compute fewer tokens than prompts and outputs
        have, as the last token of an output is never computed. What was found in the cache does not count."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=60) as response:
            sums = re.findall(r"^vllm:iteration_tokens_total_sum.* (\S+)$", response.read().decode(), re.M)
        computed = sum(map(float, sums))
        load = self.load()
        needed = load.prompt_tokens - load.prefix_hit_tokens + load.prefix_replayed_tokens + load.generation_tokens
        assert load.preemptions == 0 and computed > needed, (computed, load)

    def wait_idle(self, seconds=120):
        """The load once no lease is left: every byte must have come back."""
        def idle():
            load = self.load()
            return load if load.running == load.waiting == load.cache.num_leases == 0 else None

        load = wait_until(idle, lambda: f"the server to be idle: {self.load()}\n{self.end_of_log()}", seconds)
        assert all(pool.live_bytes == 0 for pool in load.cache.pools), load
        return load


def endless_server(model, *flags, **options):
    """A server whose streams of endless_request() continue until they are cancelled or aborted, or the server ends. It
    is for tests of what happens to a stream that still runs. A request that waits behind such a stream must have no
    deadline, as the server may foresee that it cannot meet it."""
    return BerthServer(model, *ENDLESS_FLAGS, *flags, **options)


def endless_request(**fields):
    return generate_request(max_tokens=ENDLESS_TOKENS, ignore_eos=True, **fields)


def check_it_goes_on(server, stream):
    """Reads a stream until it has a token that was computed after this call."""
    before = server.load().generation_tokens
    received = 0
    for message in stream:
        received += len(message.token_ids)
        if received > before:
            return
    raise AssertionError(f"the stream ended after {received} tokens")


def dry_run(model, *flags):
    """What --dry_run prints."""
    result = subprocess.run([SERVER, f"--model={model}", *FLAGS, *flags, "--dry_run"], capture_output=True, text=True,
                            timeout=START_SECONDS, env={**os.environ, **PERTURB, "LD_LIBRARY_PATH": LIBRARY_PATH})
    if result.returncode != 0:
        raise refusal(result.returncode, result.stderr)
    return result.stdout


def generate_request(*, ids=None, prompt=None, chat=None, max_tokens=None, temperature=0.0, logprobs=None,
                     ignore_eos=False, **fields):
    """A GenerateRequest; greedy by default. temperature None leaves the field out, so that the model's default applies.

    `chat`: the user's message, or a list of (role, content).
    """
    pb = api().inference_pb2
    request = pb.GenerateRequest(**fields)
    if ids is not None:
        request.token_ids.ids.extend(ids)
    if prompt is not None:
        request.prompt = prompt
    if chat is not None:
        turns = [("user", chat)] if isinstance(chat, str) else chat
        request.chat.messages.extend(pb.ChatMessage(role=role, content=content) for role, content in turns)
    if max_tokens is not None:
        request.stopping.max_tokens = max_tokens
    request.stopping.ignore_eos = ignore_eos
    if temperature is not None:
        request.sampling.temperature = temperature
    if logprobs is not None:
        request.logprobs = logprobs
    return request
