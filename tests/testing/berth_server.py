"""Starts a berth-server for a test and talks to it. Needs grpcio and grpcio-tools."""

import contextlib
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import grpc

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BIN = os.environ.get("BERTH_BIN", os.path.join(ROOT, "bazel-bin"))
SERVER = os.path.join(BIN, "server/berth-server")
# The server's alone: Python would load other libraries from there than it was built with.
LIBRARY_PATH = os.environ.get("BERTH_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
# Of every server, before its own.
FLAGS = os.environ.get("BERTH_TEST_FLAGS", "").split()


@functools.cache
def api():
    """The generated modules of berth.v1: inference_pb2 and inference_pb2_grpc; control and sessions likewise."""
    folder = os.path.join(ROOT, "stubs")  # in the archive of ./dev gpu-pack
    if not os.path.isdir(folder):
        from grpc_tools import protoc

        folder = tempfile.mkdtemp(prefix="berth-stubs-")
        protos = [os.path.join(ROOT, "proto/berth/v1", name)
                  for name in ("inference.proto", "control.proto", "sessions.proto")]
        arguments = [f"-I{ROOT}/proto", f"--python_out={folder}", f"--grpc_python_out={folder}", *protos]
        if protoc.main(["protoc", *arguments]) != 0:
            raise RuntimeError("protoc failed")
    sys.path.insert(0, folder)

    class Api:
        pass

    for service in ("inference", "control", "sessions"):
        for name in (f"{service}_pb2", f"{service}_pb2_grpc"):
            setattr(Api, name, importlib.import_module(f"berth.v1.{name}"))
    return Api


class DidNotStart(Exception):
    pass


class BerthServer:
    """A server on free ports; `with` starts it and stops it by SIGTERM, which must end it with exit code 0."""

    def __init__(self, model, *flags, expect_clean_exit=True):
        self.flags = [f"--model={model}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", *FLAGS, *flags]
        self.expect_clean_exit = expect_clean_exit

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="berth-test-")
        port_file = os.path.join(self.folder.name, "ports.json")
        self.log_path = os.path.join(self.folder.name, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([SERVER, *self.flags, f"--port_file={port_file}"], stdout=log, stderr=log,
                                            env={**os.environ, "LD_LIBRARY_PATH": LIBRARY_PATH})
        deadline = time.monotonic() + 120
        while not os.path.exists(port_file):
            if self.process.poll() is not None:
                raise DidNotStart(self.log())
            if time.monotonic() > deadline:
                self.process.kill()
                raise DidNotStart("no port file after 120 s\n" + self.log())
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
        log = self.log()
        if died is not None and kind is not None:
            print(f"berth-server had ended with {died}\n{log}", file=sys.stderr)
        self.folder.cleanup()
        if kind is None and self.expect_clean_exit and code != 0:
            raise AssertionError(f"berth-server ended with {code}\n{log}")

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]

    def load(self):
        return self.control.GetLoad(api().control_pb2.GetLoadRequest(), timeout=30)

    def model_info(self):
        return self.control.GetModelInfo(api().control_pb2.GetModelInfoRequest(), timeout=30)

    def wait_idle(self, seconds=30):
        """The load once no lease is left: every byte must have come back."""
        deadline = time.monotonic() + seconds
        while True:
            load = self.load()
            if load.running == load.waiting == load.cache.num_leases == 0:
                assert all(pool.live_bytes == 0 for pool in load.cache.pools), load
                return load
            assert time.monotonic() < deadline, f"not idle after {seconds} s: {load}"
            time.sleep(0.01)


def dry_run(model, *flags):
    """What --dry_run prints."""
    result = subprocess.run([SERVER, f"--model={model}", *FLAGS, *flags, "--dry_run"], capture_output=True, text=True, timeout=600,
                            env={**os.environ, "LD_LIBRARY_PATH": LIBRARY_PATH})
    if result.returncode != 0:
        raise DidNotStart(result.stderr)
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
