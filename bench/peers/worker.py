"""An engine in a process of its own, so that each has its own interpreter and libraries: one JSON object per line in
and out. The process runs `serve(Engine)`; the bench holds a `Worker`, whose calls are the engine's methods.

An engine has these methods, with plain values:
    logprobs(prompt, continuation, ids): reads prompt, then continuation token by token; at each place from the prompt's
        end on, the likeliest token, its logprob and those of ids[place]
    decode(streams, prompt_tokens, steps): tokens/s of all streams together, greedy, after the prompts
    prefill(tokens): seconds from a prompt to its first token
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

END_SECONDS = 60


def serve(make_engine):
    """Runs make_engine(**fields of the first line), then its methods, until stdin ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not look like an answer
    engine = None
    for line in sys.stdin:
        call = json.loads(line)
        try:
            if call["method"] == "open":
                engine = make_engine(**call["arguments"])
                value = None
            else:
                value = getattr(engine, call["method"])(**call["arguments"])
            answer = {"value": value}
        except Exception as error:  # the bench says what failed, and continues with the other engines
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


class Failed(Exception):
    pass


class Worker:
    def __init__(self, python, script, **arguments):
        """Failed: the engine could not be made, e.g. because it does not know the architecture."""
        self.script = script
        self.messages = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.messages, text=True)
        self.open = arguments
        try:
            self.call("open", **arguments)
        except Failed:
            self.close()
            raise

    def call(self, method, **arguments):
        try:
            self.process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.end()
            self.messages.seek(0)
            said = (self.messages.read().strip().splitlines() or ["it said nothing"])[-1]
            raise Failed(f"{os.path.basename(self.script)} ended with {code} in {method}: {said}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def __getattr__(self, method):
        return lambda **arguments: self.call(method, **arguments)

    @property
    def pid(self):
        return self.process.pid

    def end(self):
        """Waits for the process, and returns its exit status."""
        try:
            return self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # of a call that found the process gone
            self.process.stdin.close()
        self.end()
        self.process.stdout.close()
        self.messages.close()
