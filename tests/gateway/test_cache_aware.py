"""Two servers behind the SMG gateway: its cache-aware policy sends a request where its prefix is, by their events."""

import contextlib
import os
import re
import tempfile
import threading
import urllib.request

import grpc
import openai
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc

from gateway_server import DEMO, MODEL, SMG, BerthServer, end, serve
from berth_server import api, generate_request, wait_until

TOPICS = ["a fox", "an owl", "a river", "the moon", "a small boat", "an old tree"]


BLOCK = 16


class Events:
    """Reads a server's events as the gateway does: `blocks` are the tokens of the blocks that it stored, and
    `num_batches` counts what came after the snapshot."""

    def __init__(self, server):
        self.blocks, self.num_batches = set(), 0
        self.stream = vllm_engine_pb2_grpc.VllmEngineStub(server.channel).SubscribeKvEvents(
            common_pb2.SubscribeKvEventsRequest())
        snapshot = next(self.stream)
        assert snapshot.snapshot.count == 1 and snapshot.snapshot.blocks == 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        with contextlib.suppress(grpc.RpcError):  # the server ends
            for batch in self.stream:
                self.num_batches += 1
                self.blocks |= {tuple(block.token_ids) for event in batch.events for block in event.stored.blocks}


class Pair:
    def __init__(self, stack):
        self.servers = [stack.enter_context(BerthServer(DEMO, "--check_integrity")) for _ in range(2)]
        log = stack.enter_context(open(os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "log"), "wb"))
        gateway = serve.Gateway(SMG, [server.address for server in self.servers], output=log,
                                flags=["--policy=cache_aware"])
        self.metrics_url = gateway.metrics_url
        gateway.start()
        stack.callback(end, gateway.process)
        self.client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=300)
        self.events = [Events(server) for server in self.servers]
        # From then on the gateway gets what the events get.
        wait_until(lambda: self.batches("snapshot") == len(self.servers), "the gateway to take in both snapshots")

    def hits(self):
        """The prompt tokens that each server has found in its cache so far."""
        return [server.load().prefix_hit_tokens for server in self.servers]

    def chat(self, messages):
        """The answer, and the tokens that each server found for it."""
        before = self.hits()
        answer = self.client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=8)
        for server in self.servers:
            server.wait_idle()
        return answer.choices[0].message.content, [after - old for after, old in zip(self.hits(), before)]

    def counted(self, name):
        with urllib.request.urlopen(self.metrics_url, timeout=60) as response:
            text = response.read().decode()
        return {labels: float(value) for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)}

    def batches(self, disposition):
        """How many batches of events the gateway has taken in so."""
        counted = self.counted("smg_kv_event_batches_total")
        return sum(value for labels, value in counted.items() if f'disposition="{disposition}"' in labels)

    def wait_for_events(self, messages):
        """Until the gateway has taken in that a server has the prompt's blocks."""
        pb = api().inference_pb2
        chat = pb.Chat(messages=[pb.ChatMessage(**message) for message in messages])
        ids = self.servers[0].inference.Tokenize(pb.TokenizeRequest(chat=chat), timeout=60).token_ids
        blocks = {tuple(ids[at:at + BLOCK]) for at in range(0, len(ids) - BLOCK + 1, BLOCK)}
        wait_until(lambda: any(blocks <= events.blocks for events in self.events), "the events of a prompt")
        batches = sum(events.num_batches for events in self.events)
        wait_until(lambda: self.batches("applied") >= batches,
                   lambda: f"the gateway to take in {batches} batches of events: {self.batches('applied')}")


@pytest.fixture(scope="module")
def pair():
    with contextlib.ExitStack() as stack:
        yield Pair(stack)


def prompt(topic):
    return [{"role": "user", "content": f"Tell me a long story about {topic}, which begins in a forest at night. " * 4}]


def test_a_request_goes_to_the_server_that_has_its_prefix(pair):
    # Past the gateway, so only events can tell it.
    for i, topic in enumerate(TOPICS):
        pair.servers[i % 2].inference.Complete(generate_request(chat=prompt(topic)[0]["content"], max_tokens=1),
                                               timeout=120)
        pair.wait_for_events(prompt(topic))
    for i, topic in enumerate(TOPICS):
        _, found = pair.chat(prompt(topic))
        assert found[i % 2] > 30 and found[1 - i % 2] == 0, (topic, found)


def test_the_second_turn_follows_the_first(pair):
    for topic in ("a lost key", "a blue bird", "two friends"):
        messages = prompt(topic)
        answer, _ = pair.chat(messages)
        pair.wait_for_events(messages)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        _, found = pair.chat(messages)
        assert max(found) > 30 and min(found) == 0, found
