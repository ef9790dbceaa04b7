"""Calls a server on one channel, rests without a call, and calls again:
resting_client.py sync|asyncio ADDRESS REST_SECONDS.

A process of its own, because a Python client answers pings only while something of its process polls.
"""

import asyncio
import os
import sys
import time

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import api, generate_request  # noqa: E402

NUM_RESTS = 3
REQUEST = generate_request(ids=[5, 6, 7], max_tokens=3)


def rest_sync(address, rest_seconds):
    with grpc.insecure_channel(address) as channel:
        stub = api().inference_pb2_grpc.InferenceStub(channel)
        for _ in range(NUM_RESTS):
            stub.Complete(REQUEST, timeout=120)
            time.sleep(rest_seconds)
            stub.Complete(REQUEST, timeout=120)
            assert len(list(stub.Generate(REQUEST, timeout=120))) > 0


async def rest_asyncio(address, rest_seconds):
    async with grpc.aio.insecure_channel(address) as channel:
        stub = api().inference_pb2_grpc.InferenceStub(channel)
        for _ in range(NUM_RESTS):
            await stub.Complete(REQUEST, timeout=120)
            await asyncio.sleep(rest_seconds)
            await stub.Complete(REQUEST, timeout=120)
            assert len([message async for message in stub.Generate(REQUEST, timeout=120)]) > 0


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        rest_sync(sys.argv[2], float(sys.argv[3]))
    else:
        asyncio.run(rest_asyncio(sys.argv[2], float(sys.argv[3])))
