"""Two servers behind the SMG gateway: its cache-aware policy sends a request where its prefix is, by their events."""

import contextlib
import os
import re
import tempfile
import time
import urllib.request

import openai
import pytest

from gateway_server import DEMO, MODEL, SMG, BerthServer, serve
from berth_server import generate_request

TOPICS = ["a fox", "an owl", "a river", "the moon", "a small boat", "an old tree"]


class Pair:
    def __init__(self, stack):
        self.servers = [stack.enter_context(BerthServer(DEMO, "--check_integrity")) for _ in range(2)]
        log = stack.enter_context(open(os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "log"), "wb"))
        gateway = serve.Gateway(SMG, [server.address for server in self.servers], output=log,
                                flags=["--policy=cache_aware"])
        self.metrics_url = gateway.metrics_url
        gateway.start()
        stack.callback(gateway.process.wait)
        stack.callback(serve.stop, gateway.process)
        self.client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60)

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
        with urllib.request.urlopen(self.metrics_url, timeout=10) as response:
            text = response.read().decode()
        return {labels: float(value) for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)}

    def wait_for_events(self):
        """Until the gateway has taken in events of both servers, and no more come."""
        taken, deadline = {}, time.monotonic() + 60
        while True:
            time.sleep(0.2)
            now = {labels: value for labels, value in self.counted("smg_kv_event_batches_total").items()
                   if 'applied' in labels}
            if len(now) == len(self.servers) and now == taken:
                return
            assert time.monotonic() < deadline, now
            taken = now


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
                                               timeout=60)
    pair.wait_for_events()
    for i, topic in enumerate(TOPICS):
        _, found = pair.chat(prompt(topic))
        assert found[i % 2] > 30 and found[1 - i % 2] == 0, (topic, found)


def test_the_second_turn_follows_the_first(pair):
    for topic in ("a lost key", "a blue bird", "two friends"):
        messages = prompt(topic)
        answer, _ = pair.chat(messages)
        pair.wait_for_events()
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        _, found = pair.chat(messages)
        assert max(found) > 30 and min(found) == 0, found
