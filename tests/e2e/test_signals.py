"""What signals do to a server that runs, apart from those that stop it."""

import os
import signal
import sys
import time

from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import (  # noqa: E402
    ROOT, check_it_goes_on, endless_request, endless_server, generate_request)

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
FULL = bool(os.environ.get("BERTH_FULL"))
STORY = "Tell me a story about a fox."
STEP_TIMEOUT_SECONDS = 30  # far longer than a step takes on a busy machine
# A default run stops the server for less than the watchdog allows, and only shows that streams survive it. That a stop
# of any length is one wake-up is for the watchdog's unit test, with virtual time.
STOP_SECONDS = 2 * STEP_TIMEOUT_SECONDS + 5 if FULL else 2


def serves(server):
    """Whether the server is alive and ready."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    return all(stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status
               == health_pb2.HealthCheckResponse.SERVING for name in ("liveness", "readiness"))


def test_signals_that_do_not_stop_the_server(tmp_path):
    """SIGHUP reloads; SIGSTOP and SIGCONT change nothing, with BERTH_FULL for longer than the watchdog allows a step;
    others are ignored."""
    flags, tenants = tmp_path / "flags", tmp_path / "tenants.json"
    flags.write_text("--log_level=warning\n")
    tenants.write_text("{}")
    with endless_server(DEMO, f"--flagfile={flags}", f"--tenants={tenants}", f"--step_timeout={STEP_TIMEOUT_SECONDS}s",
                        expect_clean_exit=False) as server:
        whole = server.inference.Complete(generate_request(chat=STORY, max_tokens=300, ignore_eos=True), timeout=120)
        for ignored in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
            server.process.send_signal(ignored)
        flags.write_text("--log_level=info\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("reload: --log_level=info; other flags take effect at the next start")
        server.wait_for_log(f"--tenants: read {tenants} again: 0 tenants")
        endless = server.inference.Generate(endless_request(chat=STORY), timeout=600)
        next(endless)
        stream = server.inference.Generate(generate_request(chat=STORY, max_tokens=300, ignore_eos=True), timeout=600)
        text = next(stream).text
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_SECONDS)
        server.process.send_signal(signal.SIGCONT)
        assert text + "".join(message.text for message in stream) == whole.text
        check_it_goes_on(server, endless)
        endless.cancel()
        assert serves(server)
        assert "hangs" not in server.log()
        # What would only print something at a start does not end a server that runs.
        flags.write_text("--log_level=debug\n--version\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("reload: --log_level=debug")
        # What is wrong leaves the former settings.
        flags.write_text("--log_level=loud\n")
        tenants.write_text("{")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("the former log level stays")
        server.wait_for_log("the former tenants and credentials stay")
        assert serves(server)
        # A second SIGTERM does not wait for the drain.
        streams = [server.inference.Generate(endless_request(chat=STORY), timeout=600) for _ in range(16)]
        for stream in streams:
            next(stream)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=120) == 128 + signal.SIGTERM
