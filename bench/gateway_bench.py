"""Compares two policies of the SMG gateway before two servers, on conversations: cache_aware sends a turn to the server
that has the conversation's beginning, round_robin to the next one. Run by `./dev bench gateway`.

Each conversation begins with a text of its own and sends each turn with all turns before it. `clients` of them are under
way at once. The hit share counts the turns from the second on. It is cached prompt tokens over prompt tokens, as the
answers' usage gives them, and as the servers' GetLoad gives them for all turns. TTFT is the time from a request to the
first text of its stream, of the same turns. Each policy gets servers of its own, and they take turns, `rounds` times.
"""

import argparse
import os
import random
import statistics
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../tests/gateway"), os.path.join(HERE, "../tests/testing")]

import openai  # noqa: E402
from fleet import Fleet  # noqa: E402
from gateway_server import DEMO  # noqa: E402

POLICIES = ("cache_aware", "round_robin")
WORDS = ("fox bear bird owl tree river stone path moon sun rain wind house door lamp bread honey boat song story friend "
         "forest garden winter summer morning evening little old brave quiet happy").split()


class Turn:
    """One answer of a stream."""

    def __init__(self, client, model, messages, max_tokens):
        begun = time.monotonic()
        self.ttft, self.text = None, ""
        for chunk in client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=max_tokens, stream=True,
                stream_options={"include_usage": True}, extra_body={"ignore_eos": True}):
            for choice in chunk.choices:
                if choice.delta.content and self.ttft is None:
                    self.ttft = time.monotonic() - begun
                self.text += choice.delta.content or ""
            if chunk.usage:
                details = chunk.usage.prompt_tokens_details
                self.prompt_tokens, self.cached = chunk.usage.prompt_tokens, details.cached_tokens if details else 0


def converse(url, number, arguments, turns):
    """Puts the turns of conversation `number` into `turns`, a list for each."""
    generator = random.Random(number)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)
    model = client.models.list().data[0].id
    messages = []
    for turn in range(arguments.turns):
        messages.append({"role": "user", "content": " ".join(generator.choices(WORDS, k=arguments.words))})
        answer = Turn(client, model, messages, arguments.output_tokens)
        messages.append({"role": "assistant", "content": answer.text})
        turns[turn].append(answer)


def run(policy, arguments):
    """(turns, a list for each; what the servers' loads say)"""
    flags = ["--threads=1", f"--arena={arguments.arena}", "--log_level=warning"]
    turns = [[] for _ in range(arguments.turns)]
    with Fleet(arguments.servers, *flags, model=arguments.model, gateway_flags=[f"--policy={policy}"]) as fleet:
        before = [server.load() for server in fleet.servers]  # the gateway has asked for a token of each
        waiting = list(range(arguments.conversations))
        lock = threading.Lock()
        errors = []

        def client():
            while True:
                with lock:
                    if not waiting or errors:
                        return
                    number = waiting.pop(0)
                try:
                    converse(fleet.url, number, arguments, turns)
                except Exception as error:
                    errors.append(error)

        threads = [threading.Thread(target=client) for _ in range(arguments.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        loads = [(server.load(), first) for server, first in zip(fleet.servers, before)]
    return turns, [(load.prompt_tokens - first.prompt_tokens, load.prefix_hit_tokens - first.prefix_hit_tokens)
                   for load, first in loads]


class Figures:
    """The figures of one policy, over all rounds."""

    def __init__(self):
        self.turns, self.loads = [], []

    def add(self, turns, loads):
        self.turns += [answer for answers in turns[1:] for answer in answers]
        self.loads += loads

    def hit_share(self):
        return sum(turn.cached for turn in self.turns) / sum(turn.prompt_tokens for turn in self.turns)

    def load_hit_share(self):
        return sum(hits for _, hits in self.loads) / sum(tokens for tokens, _ in self.loads)

    def ttft(self):
        """Median and 90th percentile, in ms."""
        times = sorted(1000 * turn.ttft for turn in self.turns)
        return statistics.median(times), times[int(0.9 * (len(times) - 1))]


def measure(arguments):
    figures = {policy: Figures() for policy in POLICIES}
    for number in range(arguments.rounds):
        for policy in POLICIES if number % 2 == 0 else reversed(POLICIES):
            figures[policy].add(*run(policy, arguments))
    return figures


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--clients", type=int, default=3, help="conversations at once")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--words", type=int, default=150, help="of each message of the user")
    parser.add_argument("--output_tokens", type=int, default=24)
    parser.add_argument("--arena", default="256MiB", help="of each server")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(arguments)


def main(arguments):
    print(f"{'policy':14}{'hit share':>10}{'of GetLoad':>12}{'TTFT, ms: median':>18}{'p90':>8}")
    for policy, figures in measure(arguments).items():
        median, p90 = figures.ttft()
        print(f"{policy:14}{figures.hit_share():10.3f}{figures.load_hit_share():12.3f}{median:18.1f}{p90:8.1f}", flush=True)


if __name__ == "__main__":
    main(parse())
