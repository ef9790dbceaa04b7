"""Requests of every kind, one after another, with all the ways to end one. test_soak.py runs it in threads, and as a
program that it kills: soak_traffic.py ADDRESS SEED."""

import os
import random
import sys
import time

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import api, generate_request, too_late  # noqa: E402

# A client of a healthy server gets its status within this many seconds.
PATIENCE = 300


class Traffic:
    """One client. `statuses` counts the answers by kind and code."""

    def __init__(self, channel, seed, sessions=True):
        self.random = random.Random(seed)
        self.seed = seed
        self.inference = api().inference_pb2_grpc.InferenceStub(channel)
        self.control = api().control_pb2_grpc.ControlStub(channel)
        self.sessions = api().sessions_pb2_grpc.SessionsStub(channel)
        self.statuses = {}
        self.number = 0
        self.kinds = [self.plain, self.cancelled, self.late, self.aborted, self.several, self.beams, self.structured,
                      self.refused, self.unread] + [self.resumed] * sessions

    def run_one(self):
        kind = self.random.choice(self.kinds)
        self.number += 1
        code = grpc.StatusCode.OK
        start = time.monotonic()
        try:
            code = kind() or code
        except grpc.RpcError as error:
            code = error.code()
        assert time.monotonic() - start < PATIENCE, f"{kind.__name__} took over {PATIENCE} s"
        key = kind.__name__, code.name
        self.statuses[key] = self.statuses.get(key, 0) + 1

    def request(self, **fields):
        """A prompt of one of a few beginnings, so that prefixes are shared, and of any length."""
        text = f"{self.random.randrange(4)} " * self.random.choice([3, 30, 200])
        fields = {"max_tokens": self.random.choice([1, 20, 150]), "temperature": self.random.choice([0.0, 1.0]),
                  "ignore_eos": True, **fields}
        return generate_request(prompt=f"{text}{self.random.randrange(50)}", **fields)

    def stream(self, request, timeout=PATIENCE):
        return self.inference.Generate(request, timeout=timeout)

    def plain(self):
        *_, last = self.stream(self.request(logprobs=self.random.choice([None, 3])))
        assert last.usage.completion_tokens > 0

    def cancelled(self):
        call = self.stream(self.request(max_tokens=500))
        for _ in range(self.random.randrange(20)):
            next(call, None)
        call.cancel()
        return call.code()

    def late(self):
        try:
            list(self.stream(self.request(max_tokens=1000), timeout=self.random.choice([0.001, 0.02, 0.1])))
        except grpc.RpcError as error:
            if not too_late(error):
                raise
            return grpc.StatusCode.DEADLINE_EXCEEDED
        return grpc.StatusCode.OK

    def aborted(self):
        name = f"soak-{self.seed}-{self.number}"
        call = self.stream(self.request(max_tokens=1000, request_id=name))
        next(call)
        self.control.Abort(api().control_pb2.AbortRequest(request_ids=[name]), timeout=PATIENCE)
        list(call)

    def several(self):
        self.inference.Complete(self.request(n=self.random.choice([2, 4]), temperature=1.0), timeout=PATIENCE)

    def beams(self):
        request = self.request(max_tokens=20, temperature=None)
        request.beam_search.num_beams = 3
        self.inference.Complete(request, timeout=PATIENCE)

    def structured(self):
        request = self.request(max_tokens=60, ignore_eos=False)
        request.structure.regex = f"[a-z]{{{self.random.randrange(1, 20)}}}[0-9]{{2}}"
        answer = self.inference.Complete(request, timeout=PATIENCE)
        assert answer.text[-2:].isdigit(), answer

    def refused(self):
        request = self.request()
        request.sampling.top_p = -1
        try:
            self.inference.Complete(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE), error
            raise

    def unread(self):
        call = self.stream(self.request(max_tokens=1000, logprobs=5), timeout=0.5)
        time.sleep(0.1)
        call.cancel()
        return call.code()

    def resumed(self):
        name = f"s{self.seed}-{self.random.randrange(5)}"
        pb = api().sessions_pb2
        try:
            call = self.stream(self.request(max_tokens=80, session_id=name, autosave_tokens=10))
            for _ in range(self.random.randrange(1, 60)):
                next(call, None)
            call.cancel()
            call.code()
            list(self.sessions.Resume(pb.ResumeSessionRequest(session_id=name), timeout=PATIENCE))
        finally:
            try:
                self.sessions.Delete(pb.DeleteSessionRequest(session_id=name), timeout=PATIENCE)
            except grpc.RpcError:
                pass  # it runs still, or the server goes


def main():
    with grpc.insecure_channel(sys.argv[1]) as channel:
        traffic = Traffic(channel, int(sys.argv[2]), sessions=False)
        traffic.run_one()
        print("began", flush=True)
        while True:
            traffic.run_one()


if __name__ == "__main__":
    main()
