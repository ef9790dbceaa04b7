#!/usr/bin/env python3
"""Checks that an engine's prefix cache does not change its answers. For any engine with an OpenAI-compatible API.

    conformance.py --url=http://127.0.0.1:8602/v1 --flush=http://127.0.0.1:8602/flush_cache
    conformance.py --url=http://127.0.0.1:8602/v1 --reference=http://127.0.0.1:9602/v1

It asks the conversations of agents, turn by turn, and compares tokens and logprobs with those of a cold run, where no
cache can help. A cold run needs one of two things. One is a URL that empties the cache: --flush gets a POST before each
cold request. The other is a second engine with the same model that keeps no prefixes (--reference).

Traces:
  grow   each turn appends to the whole conversation
  front  a few words near the beginning change each turn, as a clock does
  strip  the template drops the first part of each answer, so the history is not what was generated
  side   as grow, with short requests of other conversations between the turns
Modes:
  turns    the turns in their order: each one finds the turns before it in the cache
  again    each turn twice: the second finds all of it
  others   each turn while other requests run
  cancels  each turn after it was begun and cancelled

Prints a table. The exit code is 0 if all answers are equal. It is 1 if some differ, a cold run was not cold, or no
request hit the cache, and 2 if the engine or the flags do not work. Needs Python's standard library only.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import sys
import urllib.error
import urllib.parse
import urllib.request

TRACES = ("grow", "front", "strip", "side")
MODES = ("turns", "again", "others", "cancels")
WORDS = ("river stone window garden letter morning silver bridge forest number yellow travel winter market simple "
         "story island paper little summer circle answer orange kitchen doctor finger animal bottle corner").split()
HEADER = f"{'trace':<7}{'mode':<9}{'requests':>9}{'hits':>6}{'cached':>8}{'tokens differ':>15}" \
         f"{'logprobs differ':>17}{'largest':>10}"


class Failed(Exception):
    """The engine or the flags do not work."""


class Engine:
    def __init__(self, url, arguments):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if arguments.api_key:
            self.headers["Authorization"] = f"Bearer {arguments.api_key}"
        self.timeout = arguments.timeout
        self.parameters = {"model": arguments.model or self.first_model(), "temperature": 0, "logprobs": True,
                           "top_logprobs": arguments.top_logprobs, "max_tokens": arguments.tokens}

    def call(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, self.headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise Failed(f"{self.url}{path}: {error.code}: {error.read().decode(errors='replace')[:500]}") from error
        except (OSError, ValueError) as error:
            raise Failed(f"{self.url}{path}: {error}") from error

    def first_model(self):
        return self.call("/models")["data"][0]["id"]

    def ask(self, messages):
        answer = self.call("/chat/completions", {**self.parameters, "messages": messages})
        try:
            return Answer(answer)
        except (KeyError, IndexError, TypeError) as error:
            raise Failed(f"{self.url}: an answer without logprobs: {json.dumps(answer)[:500]}") from error

    def begin_and_cancel(self, messages):
        """Leaves once the first bytes of the answer are there."""
        url = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.netloc, timeout=self.timeout)
        body = json.dumps({**self.parameters, "messages": messages, "stream": True})
        try:
            connection.request("POST", f"{url.path}/chat/completions", body, self.headers)
            connection.getresponse().read(1)
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{self.url}: {error}") from error
        finally:
            connection.close()


class Answer:
    def __init__(self, answer):
        choice = answer["choices"][0]
        self.text = choice["message"]["content"] or ""
        self.entries = choice["logprobs"]["content"]
        self.tokens = [entry["token"] for entry in self.entries]
        usage = answer.get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens", 0)
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def logprobs(self):
        """The logprobs of all tokens and of the likely ones beside each."""
        return [value for entry in self.entries
                for value in (entry["logprob"], *(top["logprob"] for top in entry.get("top_logprobs") or ()))]


def sentence(seed, words=24):
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(words)) + "."


def messages_of(trace, seed, answers):
    """The prompt of the turn after `answers`."""
    messages = [{"role": "system", "content": f"You are an assistant. {sentence(repr((seed, trace)))}"}]
    if trace == "front":
        messages[0]["content"] = f"It is {len(answers)} minutes past nine. " + messages[0]["content"]
    for turn, answer in enumerate([*answers, None]):
        messages.append({"role": "user", "content": f"{turn + 1}. {sentence(repr((seed, trace, turn)))}"})
        if answer is not None:
            words = answer.split()
            kept = " ".join(words[len(words) // 2:]) if trace == "strip" else answer
            messages.append({"role": "assistant", "content": kept})
    messages[0]["content"] += f" {sentence(repr((seed, trace, 'system')))}"
    return messages


def other_messages(seed, number):
    return [{"role": "user", "content": sentence(repr((seed, "other", number)), words=12)}]


class Checker:
    def __init__(self, arguments):
        self.arguments = arguments
        self.engine = Engine(arguments.url, arguments)
        self.reference = Engine(arguments.reference, arguments) if arguments.reference else self.engine
        self.pool = concurrent.futures.ThreadPoolExecutor(max(1, arguments.others))
        self.num_others = 0
        self.problems = []
        self.hits = 0
        self.reports_cached = True

    def flush(self):
        if not self.arguments.flush:
            return
        try:
            with urllib.request.urlopen(urllib.request.Request(self.arguments.flush, b"", self.engine.headers),
                                        timeout=self.arguments.timeout) as response:
                response.read()
                if response.status != 200:
                    raise Failed(f"--flush: {self.arguments.flush} answered {response.status}")
        except OSError as error:
            raise Failed(f"--flush: {self.arguments.flush}: {error}") from error

    def cold_run(self, trace):
        """[(messages, answer)] of each turn. No turn found a cache."""
        turns = []
        for turn in range(self.arguments.turns):
            messages = messages_of(trace, self.arguments.seed, [answer.text for _, answer in turns])
            self.flush()
            answer = self.reference.ask(messages)
            if answer.cached_tokens:
                self.problems.append(f"{trace}, turn {turn + 1}: the cold run found {answer.cached_tokens} tokens in the "
                                     "cache")
            turns.append((messages, answer))
        return turns

    def ask_others(self, count):
        """Starts requests of other conversations."""
        numbers = range(self.num_others, self.num_others + count)
        self.num_others += count
        return [self.pool.submit(self.engine.ask, other_messages(self.arguments.seed, number)) for number in numbers]

    def warm_run(self, trace, mode, cold):
        """The answers to the prompts of the cold run."""
        for messages, _ in cold:
            others = []
            if trace == "side":
                for other in self.ask_others(self.arguments.others):
                    other.result()
            if mode == "again":
                self.engine.ask(messages)
            elif mode == "others":
                others = self.ask_others(self.arguments.others)
            elif mode == "cancels":
                self.engine.begin_and_cancel(messages)
            yield self.engine.ask(messages)
            for other in others:
                other.result()

    def check(self, trace, mode, cold):
        """One row of the table."""
        self.flush()
        requests = hits = cached = prompt = token_mismatches = logprob_mismatches = 0
        largest = 0.0
        for turn, answer in enumerate(self.warm_run(trace, mode, cold)):
            expected = cold[turn][1]
            requests += 1
            hits += bool(answer.cached_tokens)
            self.reports_cached &= answer.cached_tokens is not None
            cached += answer.cached_tokens or 0
            prompt += answer.prompt_tokens
            if answer.tokens != expected.tokens:
                token_mismatches += 1
                self.problems.append(f"{trace}, {mode}, turn {turn + 1}: the answer is {answer.text!r}, in the cold run "
                                     f"{expected.text!r}")
                continue
            differences = [abs(a - b) for a, b in zip(answer.logprobs(), expected.logprobs())]
            largest = max([largest, *differences])
            if differences and max(differences) > self.arguments.logprob_tolerance:
                logprob_mismatches += 1
                self.problems.append(f"{trace}, {mode}, turn {turn + 1}: a logprob differs by {max(differences):.3g}")
        self.hits += hits
        share = f"{cached / prompt:.0%}" if prompt and self.reports_cached else "-"
        print(f"{trace:<7}{mode:<9}{requests:>9}{hits if self.reports_cached else '-':>6}{share:>8}"
              f"{token_mismatches:>15}{logprob_mismatches:>17}{largest:>10.2g}", flush=True)

    def run(self):
        print(HEADER)
        for trace in self.arguments.traces:
            cold = self.cold_run(trace)
            for mode in self.arguments.modes:
                self.check(trace, mode, cold)
        if self.reports_cached and self.hits == 0:
            self.problems.append("no request found anything in the cache, so nothing was compared")
        if not self.reports_cached:
            print("The engine does not report cached tokens: that requests hit its cache is not checked.")
        for problem in self.problems:
            print(f"FAILED {problem}")
        print("equal" if not self.problems else f"{len(self.problems)} problems")
        return 1 if self.problems else 0


def names(known):
    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return chosen

    return parse


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="base URL of the engine, with /v1")
    parser.add_argument("--reference", help="base URL of an engine with the same model that keeps no prefixes")
    parser.add_argument("--flush", help="URL that empties the engine's cache")
    parser.add_argument("--model", help="its name; default: the first that the engine lists")
    parser.add_argument("--api_key", default="", help="sent as a bearer token")
    parser.add_argument("--traces", type=names(TRACES), default=list(TRACES), help="default: all")
    parser.add_argument("--modes", type=names(MODES), default=list(MODES), help="default: all")
    parser.add_argument("--turns", type=int, default=6, help="turns of each conversation")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each answer, at most")
    parser.add_argument("--others", type=int, default=4, help="requests of other conversations at a time")
    parser.add_argument("--top_logprobs", type=int, default=3, help="likely tokens compared at each place")
    parser.add_argument("--logprob_tolerance", type=float, default=0.0, help="largest difference that counts as equal")
    parser.add_argument("--seed", type=int, default=0, help="chooses the words of the conversations")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that an answer may take")
    parsed = parser.parse_args(arguments)
    if bool(parsed.reference) == bool(parsed.flush):
        parser.error("give --reference or --flush: one of them makes the cold run cold")
    return parsed


def main(arguments=None):
    parsed = parse_arguments(arguments)
    try:
        return Checker(parsed).run()
    except Failed as failure:
        print(f"conformance.py: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
