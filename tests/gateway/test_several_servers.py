"""Three servers behind the gateway are restarted one after the other under load. No client loses a request, and each
stream that had begun ends whole on the server that drains."""

import os
import re
import signal
import threading

import openai

from berth_server import join, wait_until
from fleet import Fleet
from gateway_server import MODEL, ROOT

FLAGS = ["--threads=1", "--max_sequence_tokens=100000", "--attention_window=256", "--chunk_invariant_scans",
         "--check_integrity", "--log_level=debug", "--drain_grace=1h"]
STREAM_TOKENS = 4000
SECONDS = 600  # for what takes seconds on a fast machine
PROMPTS = [f"Tell me a story about {animal}." for animal in ("a fox", "a bear", "two birds", "an owl")]


def chat(url, prompt, **options):
    """The answer to a client that retries, as OpenAI's does by default, but more often."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8, timeout=SECONDS)
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **options)


class Stream:
    """A long greedy answer. `id` is there once it has begun."""

    def __init__(self, url, prompt):
        self.prompt, self.id, self.text, self.usage, self.error = prompt, None, "", None, None
        self.ended = False
        self.thread = threading.Thread(target=self.read, args=(url,), daemon=True)
        self.thread.start()

    def read(self, url):
        try:
            for chunk in chat(url, self.prompt, stream=True, max_tokens=STREAM_TOKENS, extra_body={"ignore_eos": True},
                              stream_options={"include_usage": True}):
                self.usage = chunk.usage or self.usage
                for choice in chunk.choices:
                    self.text += choice.delta.content or ""
                    if choice.delta.content:
                        self.id = chunk.id
        except Exception as error:
            self.error = error
        self.ended = True


class Load:
    """Clients that ask one short question after the other."""

    def __init__(self, url, clients):
        self.answers, self.errors, self.stopped = [], [], threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(url, number), daemon=True) for number in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        join(self.threads, "the clients to end", SECONDS)

    def ask(self, url, number):
        while not self.stopped.is_set():
            try:
                answer = chat(url, PROMPTS[number % len(PROMPTS)])
                self.answers.append((number % len(PROMPTS), answer.choices[0].message.content))
            except Exception as error:
                self.errors.append(error)


def begin_streams(fleet, server):
    """Begins streams until some run on the server, and halts its process there, so that they still run when it is told to
    drain. Returns all streams that were begun, and those that run on the server."""
    begun = []

    def some_run_here():
        begun.extend(Stream(fleet.url, PROMPTS[number % len(PROMPTS)]) for number in range(2 * len(fleet.servers)))
        wait_until(lambda: all(stream.id or stream.ended for stream in begun), "all streams to begin", SECONDS)
        server.halt()
        here = server.requests()
        running = [stream for stream in begun if stream.id in here and here[stream.id] is None]
        if not running:
            server.process.send_signal(signal.SIGCONT)
        return running

    return begun, wait_until(some_run_here, "a stream on the server that is to drain", SECONDS)


def restart(fleet, server, load, long):
    """Drains the server while streams run on it, and starts it again. Its streams end whole meanwhile."""
    begun, mine = begin_streams(fleet, server)
    answered = len(load.answers)
    # The others serve meanwhile.
    requests = server.drain(
        lambda: wait_until(lambda: len(load.answers) >= answered + 10, "ten answers of the others", SECONDS))
    for stream in begun:
        join([stream.thread], "a stream to end", SECONDS)
        assert stream.error is None
        assert stream.usage.completion_tokens == STREAM_TOKENS and stream.text == long[stream.prompt]
    assert [requests[stream.id] for stream in mine] == ["length"] * len(mine)
    server.__enter__()
    fleet.wait_healthy(len(fleet.servers))
    wait_until(lambda: server.load().generation_tokens > 0, "the server to serve again", SECONDS)


def test_a_rolling_restart_loses_nothing():
    with Fleet(3, *FLAGS, gateway_flags=["--policy=round_robin"]) as fleet:
        short = [chat(fleet.url, prompt).choices[0].message.content for prompt in PROMPTS]
        long = {}
        for stream in [Stream(fleet.url, prompt) for prompt in PROMPTS]:
            join([stream.thread], "a stream to end", SECONDS)
            assert stream.error is None and stream.usage.completion_tokens == STREAM_TOKENS
            long[stream.prompt] = stream.text
        with Load(fleet.url, clients=3) as load:
            for server in fleet.servers:
                restart(fleet, server, load, long)
        assert load.errors == [] and len(load.answers) > 30
        assert all(text == short[number] for number, text in load.answers)
        assert [server.starts for server in fleet.servers] == [2, 2, 2]


def test_a_request_waits_for_the_first_server_and_is_counted():
    """As when KEDA starts the first pod: docs/scaling.md has a query of the gateway's metric."""
    with open(os.path.join(ROOT, "docs/scaling.md"), encoding="utf-8") as file:
        ((name, path),) = re.findall(r"query: sum\(increase\((smg_\w+){path=~\"(.*?)\"}", file.read())
    with Fleet(1, *FLAGS) as fleet:
        (server,) = fleet.servers
        expected = chat(fleet.url, PROMPTS[0]).choices[0].message.content
        server.drain(lambda: None)
        series = f'path="{path}",status_code="503"'
        before = fleet.metric(name, series)
        with Load(fleet.url, clients=1) as load:
            wait_until(lambda: fleet.metric(name, series) > before, "a refusal that is counted")
            assert load.answers == []
            server.__enter__()
            wait_until(lambda: load.answers, "the answer", SECONDS)
        assert load.errors == [] and load.answers[0] == (0, expected)
