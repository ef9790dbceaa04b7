"""Clients in Go and Node keep their connection: over rests longer than the server's keepalive times, with pings of their
own, and after a stream that they left. A proxy counts the connections and the frames (frame_watch.py)."""

import contextlib
import json
import os
import subprocess

import pytest
from berth_server import ROOT, BerthServer, generate_request
from frame_watch import FrameWatch

CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
FULL = bool(os.environ.get("BERTH_FULL"))
# Sequences long enough not to end before the client leaves them.
FLAGS = ["--max_sequence_tokens=400000", "--attention_window=256", "--check_integrity"]
PING_INTERVAL_MS = 500
REST_MS = 10 * PING_INTERVAL_MS
AGE_MS = 8000  # a call has as long again, far longer than it takes on a busy machine
NUM_TEXTS = 4  # that each client prints


def installed(folder, program):
    """A program that ./dev installed where the machine has none, or the machine's."""
    path = os.path.join(CACHE, folder, "bin", program)
    return path if os.path.exists(path) else program


@pytest.fixture(scope="module")
def go_client(tmp_path_factory):
    program = str(tmp_path_factory.mktemp("go") / "client")
    subprocess.run([installed("go-venv", "go"), "build", "-buildvcs=false", "-mod=readonly", "-o", program, "."], check=True,
                   cwd=os.path.join(ROOT, "tests/clients/go"), timeout=1800)
    return lambda address, rest_ms, pings_ms: [program, address, f"{rest_ms}ms", f"{pings_ms}ms"]


@pytest.fixture(scope="module")
def node_client():
    script = os.path.join(ROOT, "tests/clients/node/resting_client.js")
    command = [installed("node-venv", "node"), script, os.path.join(ROOT, "proto")]
    return lambda address, rest_ms, pings_ms: [*command, address, str(rest_ms), str(pings_ms)]


def check(server, commands):
    """Runs the clients at once, each with a proxy of its own. Returns the proxies by name."""
    expected = server.inference.Complete(generate_request(chat="What is 23 + 45?"), timeout=120).text
    assert "68" in expected
    environment = {**os.environ, "NODE_PATH": os.path.join(CACHE, "node-client/node_modules")}
    watches, running = {}, {}
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            watches[name] = stack.enter_context(FrameWatch(server.address))
            running[name] = stack.enter_context(subprocess.Popen(
                command(watches[name].address), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
            stack.callback(running[name].kill)  # if it does not end; else this does nothing
        printed = {name: process.communicate(timeout=600) for name, process in running.items()}
    for name, process in running.items():
        texts, errors = printed[name]
        assert process.returncode == 0, f"{name}: {errors}"
        assert [json.loads(line) for line in texts.splitlines()] == [expected] * NUM_TEXTS, name
    server.wait_idle()  # the streams that were left have ended
    return watches


def test_a_client_that_rests_keeps_its_connection(go_client, node_client):
    """The clients without pings of their own rest ten intervals of the server. Node's other one pings twice in each of
    these, without calls too, which gRPC's servers count as abuse by default."""
    with BerthServer(DEMO, *FLAGS, f"--ping_interval={PING_INTERVAL_MS}ms", "--connection_age=1h") as server:
        watches = check(server, {
            "go": lambda address: go_client(address, REST_MS, 0),
            "node": lambda address: node_client(address, REST_MS, 0),
            "node that pings": lambda address: node_client(address, REST_MS, PING_INTERVAL_MS // 2)})
        assert server.load().generation_tokens < 900000
    for name, watch in watches.items():
        assert (name, watch.connections, watch.goaways()) == (name, 1, 0)
        assert watch.resets() == 1, name  # the stream that was left
        # While the long stream was under way, the server pinged, and the client answered.
        assert 2 <= watch.pings("server") <= watch.answered("client") + 1, name
    assert watches["node that pings"].pings("client") >= 3 * REST_MS // PING_INTERVAL_MS
    assert watches["node that pings"].answered("server") >= 3 * REST_MS // PING_INTERVAL_MS


def test_the_first_call_after_a_connections_age_succeeds(go_client, node_client):
    """Connections end at their age, as they should, and no client notices."""
    with BerthServer(DEMO, *FLAGS, "--ping_interval=24h", f"--connection_age={AGE_MS}ms") as server:
        watches = check(server, {"go": lambda address: go_client(address, AGE_MS * 3 // 2, 0),
                                 "node": lambda address: node_client(address, AGE_MS * 3 // 2, 0)})
    for name, watch in watches.items():
        assert watch.connections >= 2 and watch.goaways() >= 2, name


@pytest.mark.skipif(not FULL, reason="3 minutes; ./dev test --full")
def test_gos_own_pings_are_no_abuse(go_client):
    """Go's clients ping every 10 s at most; gRPC's servers end a connection at the third ping by default."""
    with BerthServer(DEMO, *FLAGS, f"--ping_interval={PING_INTERVAL_MS}ms") as server:
        watches = check(server, {"go": lambda address: go_client(address, 45_000, 10_000)})
    assert (watches["go"].connections, watches["go"].goaways()) == (1, 0)
    assert watches["go"].pings("client") >= 10
