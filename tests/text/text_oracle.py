"""Asks tests/text/text_oracle_main, which answers with Berth's own text front end."""

import json
import os
import select
import subprocess

BIN = os.environ.get("BERTH_BIN", os.path.join(os.path.dirname(__file__), "../../bazel-bin"))
SECONDS = 120


class Oracle:
    def __init__(self):
        path = os.path.join(BIN, "tests/text/text_oracle_main")
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        encoding="utf-8")

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
        self.process.stdin.flush()
        # The answer is one line, so nothing is left in Python's buffer.
        assert select.select([self.process.stdout], [], [], SECONDS)[0], f"no answer after {SECONDS} s to {request}"
        return json.loads(self.process.stdout.readline())

    def value(self, **request):
        answer = self.ask(**request)
        assert "value" in answer, (answer, request)
        return answer["value"]

    def walks(self, count, limit):
        """The complete ones of random texts of the grammar. Some do not end within `limit` tokens, but never all."""
        texts = [self.value(walk=seed, limit=limit) for seed in range(count)]
        complete = [text for text in texts if text is not None]
        assert complete, f"none of {count} random texts ended within {limit} tokens"
        return complete

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(timeout=SECONDS) == 0
