"""Measures what tenants get of a loaded server. Run by `./dev bench fairness`. Exits with 1 if a promise is broken:

  two tenants    one with 100 times the requests of the other: each gets half, within 5 %
  weights        a tenant of weight 3 and one of weight 1, again 100:1: three quarters and one, within 5 %
  ten tenants    with equally many requests of mixed lengths: Jain's index of what they get is at least 0.95
  one tenant     at least 0.99 of the tokens that first come, first served gives it

Each tenant keeps a number of requests at the server, so the offered load is above what it can take. A tenant gets what
its ended requests cost: 1 for a token of a prompt, 2 for a generated one. Both servers of the last promise run at once, on a
thread each. Their tokens per second of processor time are compared, since other work on the machine changes those least.
Runs the bundled model.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../tests/testing"), os.path.join(HERE, "peers")]

import machine  # noqa: E402
from berth_server import BerthServer, generate_request  # noqa: E402

DEMO = os.path.join(HERE, "../models/demo/falcon_h1-demo")
FLAGS = ["--max_running=8", "--max_queue=4096", "--max_sequence_tokens=512", "--log_level=warning"]
SHARE_WITHIN, JAIN, ALONE = 0.05, 0.95, 0.99


class Tenant:
    """Keeps `waiting` requests at the server: each answer is followed by the next request."""

    def __init__(self, server, name, waiting, prompt=(16, 64), output=(16, 64)):
        self.server, self.name, self.prompt, self.output = server, name, prompt, output
        self.vocab = server.model_info().vocab_size
        self.generator = random.Random(name)
        self.cost = 0
        self.error = None
        self.stopped = False
        self.lock = threading.RLock()  # an answer that is there at once is handled within send()
        with self.lock:
            for _ in range(waiting):
                self.send()

    def send(self):
        if self.stopped:
            return
        ids = [self.generator.randrange(3, self.vocab) for _ in range(self.generator.randint(*self.prompt))]
        request = generate_request(ids=ids, max_tokens=self.generator.randint(*self.output), ignore_eos=True,
                                   cache_salt=self.name, share_prefix=False)
        self.server.inference.Complete.future(request, timeout=600).add_done_callback(self.answered)

    def answered(self, call):
        with self.lock:
            if call.exception() is None:
                usage = call.result().usage
                self.cost += usage.prompt_tokens + 2 * usage.completion_tokens
                self.send()
            elif not self.stopped:
                self.error = call.exception()
                self.stopped = True


def costs(tenants, warm_up, seconds):
    """What each tenant gets in `seconds`, by name."""
    time.sleep(warm_up)
    before = [tenant.cost for tenant in tenants]
    time.sleep(seconds)
    got = {tenant.name: tenant.cost - cost for tenant, cost in zip(tenants, before)}
    for tenant in tenants:
        if tenant.error is not None:
            raise tenant.error
        tenant.stopped = True
    return got


def measure_two(arguments, *flags):
    """Shares of the total, by name."""
    with BerthServer(arguments.model, *FLAGS, *flags, "--drain_grace=0s") as server:
        tenants = [Tenant(server, "heavy", 100 * arguments.waiting), Tenant(server, "light", arguments.waiting)]
        got = costs(tenants, arguments.warm_up, arguments.seconds)
    total = sum(got.values())
    return {name: cost / total for name, cost in got.items()}


def measure_ten(arguments):
    """Jain's index of ten tenants, from short prompts with long outputs to the opposite."""
    with BerthServer(arguments.model, *FLAGS, "--drain_grace=0s") as server:
        tenants = [Tenant(server, f"tenant {i}", arguments.waiting, prompt=(8, 16 + 20 * i), output=(8, 24 + 8 * (9 - i)))
                   for i in range(10)]
        got = costs(tenants, arguments.warm_up, arguments.seconds).values()
    return sum(got) ** 2 / (len(got) * sum(cost ** 2 for cost in got))


def processor_seconds(server):
    """What the server's process has used so far."""
    with open(f"/proc/{server.process.pid}/stat", encoding="utf-8") as file:
        user, system = file.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure_one(arguments):
    """Tokens per second of processor time, (fair, first come first served)."""
    flags = [*FLAGS, "--threads=1", "--drain_grace=0s"]
    with BerthServer(arguments.model, *flags) as fair, \
            BerthServer(arguments.model, *flags, "--scheduling=fcfs") as fcfs:
        # Long outputs, so that the clients' work is small beside the servers'.
        tenants = [Tenant(server, "alone", 4 * arguments.waiting, output=(150, 250)) for server in (fair, fcfs)]

        def used():
            return [(server.load().generation_tokens, processor_seconds(server)) for server in (fair, fcfs)]

        time.sleep(arguments.warm_up)
        before = used()
        time.sleep(2 * arguments.seconds)
        after = used()
        for tenant in tenants:
            if tenant.error is not None:
                raise tenant.error
            tenant.stopped = True
    return [(tokens - tokens_before) / (seconds - seconds_before)
            for (tokens, seconds), (tokens_before, seconds_before) in zip(after, before)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--seconds", type=float, default=20, help="time of a measurement; the last takes twice that")
    parser.add_argument("--warm_up", type=float, default=4, help="seconds before it")
    parser.add_argument("--waiting", type=int, default=16, help="requests that a tenant keeps at the server")
    arguments = parser.parse_args()
    print(machine.describe())
    missed = []

    def report(what, value, text, ok):
        print(f"| {what} | {value} | {text} |", flush=True)
        if not ok:
            missed.append(f"{what}: {value}")

    print("\n| measured | got | promised |\n|---|---|---|")
    shares = measure_two(arguments)
    for name, share in shares.items():
        report(f"share of the {name} one of two tenants, 100:1 requests", f"{share:.3f}", "0.5 within 5 %",
               abs(share - 0.5) <= SHARE_WITHIN * 0.5)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write('{"tenants": [{"name": "light", "weight": 3}]}')
        file.flush()
        share = measure_two(arguments, f"--tenants={file.name}")["light"]
    report("share of the light one with three times the weight", f"{share:.3f}", "0.75 within 5 %",
           abs(share - 0.75) <= SHARE_WITHIN * 0.75)
    share = measure_two(arguments, "--scheduling=fcfs")["light"]
    report("share of the light one, first come first served", f"{share:.3f}", "", True)
    jain = measure_ten(arguments)
    report("Jain's index of ten tenants", f"{jain:.3f}", f"at least {JAIN}", jain >= JAIN)
    fair, fcfs = measure_one(arguments)
    report("one tenant: tokens/s over those of first come first served", f"{fair:.0f} / {fcfs:.0f} = {fair / fcfs:.3f}",
           f"at least {ALONE}", fair / fcfs >= ALONE)
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
