"""Mixed traffic, failures and restarts for thousands of requests (BERTH_FULL: more rounds, each of ten times as many),
and 10,000 streams at once. Nothing may be left behind, and every client gets a status."""

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
from berth_server import (  # noqa: E402
    BIN, ENDLESS_TOKENS, ROOT, BerthServer, api, endless_server, generate_request, join, wait_until)
from soak_traffic import PATIENCE, Traffic  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
FULL = bool(os.environ.get("BERTH_FULL"))
ROUNDS = 12 if FULL else 3  # each with a server of its own, on the same folders
ROUND_REQUESTS = 30000 if FULL else 3000
ROUND_SECONDS = 7200  # that a round may take at most
STREAMS = 10000
FAIL_EVERY = 211  # steps
# What a client may see. INTERNAL: a step was made to fail. RESOURCE_EXHAUSTED: the queue was full.
CODES = {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "NOT_FOUND",
         "FAILED_PRECONDITION"}


def resident_kb(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


class Clients:
    """Threads with traffic, and processes with the same that are killed in the middle of it."""

    def __init__(self, address, seed):
        self.address, self.stopping, self.errors = address, False, []
        self.traffics, self.num_killed = [], 0
        self.threads = [threading.Thread(target=self.run, args=(seed + i,), daemon=True) for i in range(6)]
        self.threads.append(threading.Thread(target=self.kill, args=(seed,), daemon=True))
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
        try:
            while not self.stopping:
                program = os.path.join(HERE, "soak_traffic.py")
                command = [sys.executable, program, self.address, str(chance.randrange(10**6))]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
                    began = client.stdout.readline()  # its first request has ended
                    time.sleep(chance.uniform(0, 3))
                    client.send_signal(signal.SIGKILL)
                assert began == "began\n", began
                self.num_killed += 1
        except Exception as error:
            self.errors.append(error)

    def wait_for_requests(self, count):
        """Until the threads have ended this many, and a process was killed."""
        def enough():
            assert self.errors == []
            return sum(traffic.number for traffic in self.traffics) >= count and self.num_killed > 0

        wait_until(enough, f"{count} requests", ROUND_SECONDS)

    def stop(self):
        self.stopping = True
        join(self.threads, "the clients to end", 2 * PATIENCE)
        assert self.errors == []
        statuses = collections.Counter()
        for traffic in self.traffics:
            assert traffic.number == sum(traffic.statuses.values())
            statuses.update(traffic.statuses)
        return statuses


def end_of_a_request_alone(server):
    """The status of a request that runs alone for more steps than pass until one fails. In mixed traffic it is left to
    chance whether a step that fails holds one request only."""
    request = generate_request(ids=[5, 6, 7], max_tokens=2 * FAIL_EVERY, ignore_eos=True)
    return server.inference.Complete.future(request, timeout=PATIENCE).code()


def test_soak(tmp_path):
    flags = ["--check_integrity", "--poison_cache", "--arena=4MiB", "--host_tier=8MiB", "--copy_bytes_per_step=1MiB",
             f"--fail_step_every={FAIL_EVERY}", "--max_running=8", "--max_queue=16", "--always_copy",
             f"--session_dir={tmp_path}/sessions", f"--disk_tier={tmp_path}/disk", "--disk_tier_bytes=16MiB",
             "--tier_idle=500ms", "--log_level=error"]
    statuses = collections.Counter()
    for round_number in range(ROUNDS):
        with BerthServer(DEMO, *flags) as server:
            before = descriptors(server)
            clients = Clients(server.address, 1000 * round_number)
            clients.wait_for_requests(ROUND_REQUESTS / 2)
            half = resident_kb(server)
            clients.wait_for_requests(ROUND_REQUESTS)
            statuses.update(clients.stop())
            server.wait_idle()
            assert end_of_a_request_alone(server) == grpc.StatusCode.INTERNAL, "a request whose own step fails"
            server.wait_idle()
            wait_until(lambda: server.load().undelivered_bytes == 0, "what was not delivered to be dropped")
            grown = resident_kb(server) - half
            print(f"round {round_number}: {grown} KB in its second half; {server.load().preemptions} preemptions")
            assert grown < 32 << 10
            # The helper's connection; a file of the tiers.
            wait_until(lambda: descriptors(server) <= before + 2,
                       lambda: f"descriptors to be closed: {descriptors(server)} are open, {before} were before")
    print(sorted(statuses.items()))
    assert {code for _, code in statuses} <= CODES
    for kind in ("plain", "aborted", "several", "beams", "structured", "resumed"):
        assert statuses[kind, "OK"] > 0, kind
    for status in (("cancelled", "CANCELLED"), ("unread", "CANCELLED"), ("late", "DEADLINE_EXCEEDED"),
                   ("refused", "INVALID_ARGUMENT")):
        assert statuses[status] > 0, status


def open_streams(server, count):
    """Streams that wait for their turn; all get a status when they are cancelled. Returns the server's KB before and
    while they wait."""
    channels = [grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)]
    stubs = [api().inference_pb2_grpc.InferenceStub(channel) for channel in channels]
    request = generate_request(ids=[5, 6, 7], max_tokens=1900, ignore_eos=True)  # no text has to wait for a thread
    before = resident_kb(server)
    # Without a deadline: the server would refuse those that cannot be met.
    calls = [stubs[i % len(stubs)].Generate(request) for i in range(count)]
    wait_until(lambda: server.load().waiting == count, lambda: f"{count} streams that wait: {server.load()}", 600)
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
    """None of them runs: another one does, in the only place, until it is killed."""
    with endless_server(DEMO, "--max_running=1", f"--max_queue={STREAMS}", "--max_step_tokens=64",
                        "--prefill_chunk_tokens=64") as server:
        first = subprocess.Popen([os.path.join(BIN, "client/berth-cli"), "generate", f"--server={server.address}",
                                  "--prompt=x", f"--max_tokens={ENDLESS_TOKENS}", "--ignore_eos"],
                                 stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: server.load().running == 1, "the first stream to run")
            before, waiting = open_streams(server, STREAMS)
            wait_until(lambda: server.load().waiting == 0, "the streams to end")
            print(f"{(waiting - before) / STREAMS:.1f} KB a stream")
            assert (waiting - before) / STREAMS < 40
            _, again = open_streams(server, STREAMS)
        finally:
            first.kill()
            first.wait(timeout=60)
        server.wait_idle()
        assert again - waiting < 64 << 10, "the memory of the first streams is used again"
