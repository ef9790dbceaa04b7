#!/usr/bin/env python3
"""Serves a model by the OpenAI API: starts a berth-server and the SMG gateway before it, and prints the base URL.

    serve.py --gateway=SMG [--listen=HOST:PORT] -- SERVER [FLAGS]

SERVER is a berth-server; the gateway finds its port by --port_file. Both end together: when one of them ends, and at
SIGINT or SIGTERM, the gateway before the server. A second signal ends requests that still run. `./dev serve --openai`
calls this script. The gateway speaks plaintext without a credential: a server with TLS, with credentials, or on a Unix
socket needs --gateway_listen and --gateway_tenant too. Needs Python's standard library and setpriv of util-linux.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

START_SECONDS = 600  # of a server that packs a large model; a gateway takes one
POLL_SECONDS = 0.05


class DidNotStart(Exception):
    pass


def spawn(command, **options):
    """The child gets SIGTERM when this process ends, however it ends. Not by a preexec_fn: Python would fork for it, and a
    child that is forked beside gRPC's threads may abort."""
    # In a session of its own: a terminal's Ctrl-C reaches this process alone, which then ends the gateway first.
    return subprocess.Popen(["setpriv", "--pdeathsig=TERM", *command], start_new_session=True, **options)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, process, is_there):
    deadline = time.monotonic() + START_SECONDS
    while not is_there():
        if process.poll() is not None:
            raise DidNotStart(f"{what} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise DidNotStart(f"{what} did not start within {START_SECONDS} s")
        time.sleep(POLL_SECONDS)


def stop(process, number=signal.SIGTERM):
    if process is not None and process.poll() is None:
        process.send_signal(number)


class Gateway:
    """The SMG gateway before berth-servers. `url` answers once start() has returned."""

    def __init__(self, smg, workers, host="127.0.0.1", port=0, flags=(), output=None):
        self.port = port or free_port()
        self.url = f"http://{host}:{self.port}"
        metrics_port = free_port()
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        urls = [f"grpc://{worker}" for worker in workers]
        self.command = [smg, "launch", "--worker-urls", *urls, f"--host={host}", f"--port={self.port}",
                        f"--prometheus-port={metrics_port}", "--log-level=warn", *flags]
        self.output = output
        self.process = None

    def start(self):
        self.process = spawn(self.command, stdout=self.output, stderr=self.output)
        try:
            wait_for("the gateway", self.process, self.answers)
        except BaseException:
            stop(self.process, signal.SIGKILL)
            raise

    def answers(self):
        """Whether it knows a model and has its tokenizer, which it fetches from the server."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as response:
                models = json.load(response)["data"]
            if not models:
                return False
            body = {"model": models[0]["id"], "prompt": "a", "max_tokens": 1}
            request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60):
                return True
        except (OSError, urllib.error.URLError):
            return False


def read_flags(arguments):
    """The server's flags by name. As in the server, the last one wins, and those of a --flagfile come first."""
    flags = {}
    for argument, following in zip(arguments, [*arguments[1:], "--"]):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            flags[name[2:]] = value if equals or following.startswith("--") else following
    path = flags.pop("flagfile", "")
    if not os.path.isfile(path):
        return flags
    with open(path, encoding="utf-8") as file:
        return {**read_flags([line.strip() for line in file]), **flags}


def has_credentials(tenants):
    """Whether a file of --tenants has any. The server says what is wrong with a file that cannot be read."""
    try:
        with open(tenants, encoding="utf-8") as file:
            return any(tenant.get("tokens") or tenant.get("certificates") for tenant in json.load(file)["tenants"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


class Listener:
    """The listener of a server by which the gateway reaches it: that of --gateway_listen, else that of --listen."""

    def __init__(self, flags):
        self.own = bool(flags.get("gateway_listen"))
        self.flag = "gateway_listen" if self.own else "listen"
        self.address = flags.get(self.flag) or "127.0.0.1:8600"
        self.flags = flags

    def why_not(self):
        """Why the gateway cannot reach the server. None: it can."""
        if self.address.startswith("unix:"):
            return f"--{self.flag}={self.address}: it cannot connect to a Unix socket"
        if not self.own and self.flags.get("tls_cert"):
            return f"--tls_cert={self.flags['tls_cert']}: it speaks plaintext"
        if not self.own and has_credentials(self.flags.get("tenants", "")):
            return f"--tenants={self.flags['tenants']}: it sends no credential, and this file has some"
        return None

    def worker(self, ports):
        host = self.address.rpartition(":")[0]
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        return f"{host}:{ports['gateway' if self.own else 'grpc']}"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", required=True, help="the program smg of the Python package of that name")
    parser.add_argument("--listen", default="127.0.0.1:8602", help="address of the OpenAI API; port 0: any free one")
    parser.add_argument("server", nargs="+", help="the server's program and flags, after --")
    arguments = parser.parse_args()
    host, colon, port = arguments.listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        parser.error(f"--listen: {arguments.listen} is not HOST:PORT")
    arguments.listener = Listener(read_flags(arguments.server[1:]))
    if reason := arguments.listener.why_not():
        parser.error(f"the gateway cannot reach this server by {reason}. Add --gateway_listen=127.0.0.1:0 and "
                     "--gateway_tenant=NAME to the server's flags: see docs/security.md#credentials")
    return arguments, host, int(port)


def serve(arguments, host, port, processes):
    with tempfile.TemporaryDirectory(prefix="berth-openai-") as folder:
        port_file = os.path.join(folder, "ports.json")
        server = spawn([*arguments.server, f"--port_file={port_file}"])
        processes.append(server)
        wait_for("the server", server, lambda: os.path.exists(port_file))
        with open(port_file, encoding="utf-8") as file:
            worker = arguments.listener.worker(json.load(file))
    gateway = Gateway(arguments.gateway, [worker], host, port)
    gateway.start()
    processes.append(gateway.process)
    print(f"OpenAI base URL: {gateway.url}/v1", flush=True)
    while all(process.poll() is None for process in processes):
        time.sleep(POLL_SECONDS)


def end(processes):
    """Ends what still runs, the last started first. Returns the exit code: the first that is not 0."""
    codes = [process.poll() for process in processes]
    for process in reversed(processes):
        signal.signal(signal.SIGTERM, lambda *_, process=process: stop(process))
        signal.signal(signal.SIGINT, lambda *_, process=process: stop(process))
        stop(process)
        process.wait()
    return next((code for code in codes if code), 0)


def main():
    arguments, host, port = parse_arguments()
    processes = []

    def on_signal(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        serve(arguments, host, port, processes)
    except KeyboardInterrupt:
        pass
    except DidNotStart as error:
        print(f"serve.py: {error}", file=sys.stderr)
        end(processes)
        return 1
    return 1 if end(processes) else 0


if __name__ == "__main__":
    sys.exit(main())
