"""A server that ends by a fault says where it was, and its supervisor sees the signal."""

import ctypes
import os
import signal
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import (ROOT, BerthServer, endless_request, endless_server, generate_request,  # noqa: E402
                          wait_until)

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
SYS_TGKILL = 234  # of x86-64


def processor_ticks(pid):
    """The processor time of each thread, by its id."""
    ticks = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks[int(thread)] = int(fields[11]) + int(fields[12])
    return ticks


def engine_thread(pid):
    """The thread that computes while a stream runs: with --threads=1 it has no helpers."""
    before = processor_ticks(pid)

    def busiest():
        used = sorted((ticks - before.get(thread, 0), thread) for thread, ticks in processor_ticks(pid).items())
        return used[-1][1] if used[-1][0] > 20 + 2 * used[-2][0] else None

    return wait_until(busiest, "one thread to compute")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS], ids=lambda number: number.name)
def test_a_fault_prints_its_stack(number):
    with BerthServer(DEMO, expect_clean_exit=False) as server:
        server.inference.Complete(generate_request(prompt="x", max_tokens=2), timeout=120)
        server.process.send_signal(number)
        assert server.process.wait(timeout=120) == -number
        log = server.log()
        # The main thread, wherever it is.
        assert f"{number.name} received" in log and "berth::" in log.partition("received")[2], log


def test_a_fault_of_the_engines_thread_prints_its_stack(tmp_path):
    with endless_server(DEMO, "--threads=1", f"--crash_dir={tmp_path}", expect_clean_exit=False) as server:
        stream = server.inference.Generate(endless_request(prompt="x"), timeout=600)
        next(stream)
        thread = engine_thread(server.process.pid)
        assert ctypes.CDLL(None).syscall(SYS_TGKILL, server.process.pid, thread, int(signal.SIGSEGV)) == 0
        assert server.process.wait(timeout=120) == -signal.SIGSEGV
        assert "berth::Engine::" in server.log(), server.end_of_log()
        assert os.listdir(tmp_path) == [f"berth-{server.process.pid}.steps"]
