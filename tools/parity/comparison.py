"""What the regimes share: the server's flags, a request, and an Outcome, which counts what was compared."""

import numpy as np

from berth_server import generate_request
from cases import CASES, NEW_TOKENS, VOCAB

TIE_MARGIN = 1e-4
BASE_FLAGS = ["--poison_cache", "--check_integrity", "--log_level=warning", "--block_tokens=16", "--max_running=16",
              "--max_sequence_tokens=400", f"--max_logprobs={VOCAB}"]
# Mamba-2 and the gated delta net, whose prefill in matrix form sums by the chunk.
SUMS_BY_CHUNK = ("mamba2", "falcon_h1", "bamba", "granitemoehybrid", "nemotron_h", "zamba2", "qwen3_next", "qwen3_5",
                 "olmo_hybrid")


def base_flags(name):
    case = CASES[name]
    return BASE_FLAGS + ([f"--attention_window={case.window}", f"--sink_tokens={case.sinks}"] if case.window else [])


def stable_flags(name):
    """So that no bit depends on the chunks."""
    return ["--chunk_invariant_scans"] if name.startswith(SUMS_BY_CHUNK) else []


class Outcome:
    def __init__(self):
        self.rows = self.ties = self.misses = 0
        self.notes = []

    def miss(self, note):
        self.misses += 1
        self.notes.append(note)

    def compare(self, got, answers, index, what, skip=0, tie_margin=TIE_MARGIN):
        """Tokens against the oracle's from the `skip`-th on. The request may have asked for fewer."""
        self.rows += 1
        expected = answers["tokens"][index][skip : skip + len(got)]
        margins = answers["margins"][index][skip:]
        if answers["forced_eos"] is not None:
            expected[-1] = answers["forced_eos"]  # the token that reaches max_tokens
        if got == expected:
            return
        at = next(i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1])
        note = f"{what}: token {at} is {got[at]}, expected {expected[at]}, margin {margins[at]:.2e}"
        if margins[at] < tie_margin:
            self.ties += 1
            self.notes.append("tie: " + note)
        else:
            self.miss(note)

    def cell(self):
        if self.misses:
            return f"{self.misses} MISS"
        if not self.rows:
            return "-"
        return f"ok {self.rows}" + (f" ({self.ties} tie)" if self.ties else "")


def complete(server, answers, prompt, max_tokens=NEW_TOKENS, logprobs=None, **fields):
    request = generate_request(ids=prompt, max_tokens=max_tokens, ignore_eos=True, logprobs=logprobs,
                               **answers["request"], **fields)
    response = server.inference.Complete(request, timeout=300)
    assert len(response.token_ids) == max_tokens == response.usage.completion_tokens, response.usage
    return response


def distribution(logprobs):
    row = np.full(VOCAB, -np.inf)
    for entry in logprobs.top:
        row[entry.token_id] = entry.logprob
    return row


def own_answers(server, answers, rows, **fields):
    """The server's own cold outputs, in the oracle's form: what the same requests are compared with in other regimes.
    rows: {index: (prompt, count of tokens)}."""
    own = {"tokens": {}, "margins": {}, "forced_eos": None}
    for i, (prompt, count) in rows.items():
        response = complete(server, answers, prompt, count, logprobs=2, share_prefix=False, **fields)
        own["tokens"][i] = list(response.token_ids)
        own["margins"][i] = [entry.top[0].logprob - entry.top[1].logprob for entry in response.logprobs]
    return own
