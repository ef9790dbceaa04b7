"""Measures what streams that wait cost: the server's memory for each, and what the running ones keep of their speed. Run
by `./dev bench streams`. Exits with 1 if that is below 0.95.

The demo model runs 8 sequences at a time. In turn, 64 and 10,000 requests wait for their places. The client reads
nothing meanwhile: what the requests produce fits into gRPC's windows and the server's limits. Its own work for 10,000
calls must not count, since clients are elsewhere: it yields to the server wherever both want a core.
"""

import argparse
import os
import statistics
import sys
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))

from berth_server import ROOT, BerthServer, api, generate_request, wait_until  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
FEW, RUNNING, PROMISE = 64, 8, 0.95


def resident_kb(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def speed(server, seconds):
    """Tokens a second."""
    before, start = server.load(), time.monotonic()
    time.sleep(seconds)
    after = server.load()
    return (after.generation_tokens - before.generation_tokens) / (time.monotonic() - start)


def measure(server, count, seconds):
    """Returns the speed, and the growth of the server's memory for each stream in KB."""
    channels = [grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)]
    stubs = [api().inference_pb2_grpc.InferenceStub(channel) for channel in channels]
    request = generate_request(ids=[5, 6, 7], max_tokens=1900, ignore_eos=True)
    before = resident_kb(server)
    calls = [stubs[i % len(stubs)].Generate(request) for i in range(count)]
    wait_until(lambda: server.load().waiting >= 0.97 * count - RUNNING, f"{count} streams to wait", 600)
    grown = (resident_kb(server) - before) / count
    time.sleep(0.5)
    tokens = speed(server, seconds)
    load = server.load()
    if load.waiting + load.running < RUNNING:
        raise SystemExit(f"the {count} streams ended before {seconds} s were over: give fewer --seconds")
    for call in calls:
        call.cancel()
    for call in calls:
        call.code()
    for channel in channels:
        channel.close()
    server.wait_idle(60)
    return tokens, grown


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10000, help="streams that wait")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, in turn")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    args = parser.parse_args()
    with BerthServer(DEMO, f"--max_running={RUNNING}", f"--max_queue={args.streams}", "--max_step_tokens=64",
                     "--prefill_chunk_tokens=64") as server:
        os.nice(19)
        _, kb = measure(server, args.streams, 0)
        pairs = [(measure(server, FEW, args.seconds)[0], measure(server, args.streams, args.seconds)[0])
                 for _ in range(args.rounds)]
    ratio = statistics.median(many / few for few, many in pairs)
    print("| streams that wait | tokens/s of 8 running | memory for each |\n|---|---|---|")
    print(f"| {FEW} | {statistics.median(few for few, _ in pairs):.0f} | |")
    print(f"| {args.streams} | {statistics.median(many for _, many in pairs):.0f} | {kb:.0f} KB |")
    print(f"\nmedian ratio of {args.rounds} pairs: {ratio:.2f}")
    if ratio < PROMISE:
        sys.exit(f"missed: the running streams keep {ratio:.2f} of their speed, not {PROMISE}")


if __name__ == "__main__":
    main()
