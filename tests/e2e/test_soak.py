"""Mixed traffic, failures and restarts for two minutes (BERTH_FULL: an hour), and 10,000 streams at once: nothing may be
left behind, and every client gets a status."""

import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../testing"))
from berth_server import ROOT, BerthServer, api, generate_request  # noqa: E402
from soak_traffic import Traffic  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
FULL = bool(os.environ.get("BERTH_FULL"))
ROUNDS = 12 if FULL else 3  # each with a server of its own, on the same folders
ROUND_SECONDS = 300 if FULL else 35
STREAMS = 10000
# What a client may see. INTERNAL: a step was made to fail. RESOURCE_EXHAUSTED: the queue was full.
CODES = {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "NOT_FOUND",
         "FAILED_PRECONDITION"}


def resident_kb(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Clients:
    """Threads with traffic, and processes with the same that are killed in the middle of it."""

    def __init__(self, address, seed):
        self.address, self.stopping, self.errors = address, False, []
        self.traffics = []
        self.threads = [threading.Thread(target=self.run, args=(seed + i,)) for i in range(6)]
        self.threads.append(threading.Thread(target=self.kill, args=(seed,)))
        for thread in self.threads:
            thread.start()

    def run(self, seed):
        try:
            with grpc.insecure_channel(self.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                traffic = Traffic(channel, seed)
                self.traffics.append(traffic)
                while not self.stopping:
                    traffic.run_one()
        except Exception as error:  # of a thread: the test reports it
            self.errors.append(error)

    def kill(self, seed):
        chance = random.Random(seed)
        while not self.stopping:
            program = [sys.executable, os.path.join(HERE, "soak_traffic.py"), self.address, str(chance.randrange(10**6))]
            client = subprocess.Popen(program)
            time.sleep(chance.uniform(1, 4))
            client.send_signal(signal.SIGKILL)
            client.wait()

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()
        assert self.errors == []
        statuses = collections.Counter()
        for traffic in self.traffics:
            assert traffic.number == sum(traffic.statuses.values())
            statuses.update(traffic.statuses)
        return statuses


def test_soak(tmp_path):
    flags = ["--check_integrity", "--poison_cache", "--arena=4MiB", "--host_tier=8MiB", "--copy_bytes_per_step=1MiB",
             "--fail_step_every=211", "--max_running=8", "--max_queue=16", f"--session_dir={tmp_path}/sessions",
             f"--disk_tier={tmp_path}/disk", "--disk_tier_bytes=16MiB", "--tier_idle=500ms", "--log_level=error"]
    statuses = collections.Counter()
    for round_number in range(ROUNDS):
        with BerthServer(DEMO, *flags) as server:
            before = descriptors(server)
            clients = Clients(server.address, 1000 * round_number)
            time.sleep(ROUND_SECONDS / 2)
            half = resident_kb(server)
            time.sleep(ROUND_SECONDS / 2)
            statuses.update(clients.stop())
            server.wait_idle(60)
            eventually(lambda: server.load().undelivered_bytes == 0)
            grown = resident_kb(server) - half
            print(f"round {round_number}: {grown} KB in its second half; {server.load().preemptions} preemptions")
            assert grown < 32 << 10
            eventually(lambda: descriptors(server) <= before + 2)  # the helper's connection; a file of the tiers
    print(sorted(statuses.items()))
    assert {code for _, code in statuses} <= CODES
    for kind in ("plain", "aborted", "several", "beams", "structured", "resumed"):
        assert statuses[kind, "OK"] > 0, kind
    for status in (("cancelled", "CANCELLED"), ("unread", "CANCELLED"), ("late", "DEADLINE_EXCEEDED"),
                   ("refused", "INVALID_ARGUMENT")):
        assert statuses[status] > 0, status
    assert any(code == "INTERNAL" for _, code in statuses), "a request whose own step fails ends with that"


def open_streams(server, count):
    """Streams that wait for their turn; all get a status when they are cancelled. Returns the server's KB before and
    while they wait."""
    channels = [grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)]
    stubs = [api().inference_pb2_grpc.InferenceStub(channel) for channel in channels]
    request = generate_request(ids=[5, 6, 7], max_tokens=1900, ignore_eos=True)  # no text has to wait for a thread
    before = resident_kb(server)
    # Without a deadline: the server would refuse those that cannot be met.
    calls = [stubs[i % len(stubs)].Generate(request) for i in range(count)]
    eventually(lambda: server.load().waiting > 0.9 * count, seconds=120)
    waiting = resident_kb(server)
    for call in calls:
        call.cancel()
    codes = collections.Counter(call.code() for call in calls)
    other = [call.details() for call in calls if call.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK)]
    assert other == [], (codes, other[:3])
    for channel in channels:
        channel.close()
    return before, waiting


def test_ten_thousand_streams():
    with BerthServer(DEMO, "--max_running=4", f"--max_queue={STREAMS}", "--max_step_tokens=64",
                     "--prefill_chunk_tokens=64") as server:
        before, waiting = open_streams(server, STREAMS)
        server.wait_idle(60)
        print(f"{(waiting - before) / STREAMS:.1f} KB a stream")
        assert (waiting - before) / STREAMS < 40
        _, again = open_streams(server, STREAMS)
        server.wait_idle(60)
        assert again - waiting < 64 << 10, "the memory of the first streams is used again"
