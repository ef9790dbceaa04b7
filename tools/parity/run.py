"""Compares the running server with transformers: every case in every regime. `./dev parity` runs it.

With --first, as `./dev test` has it, the cases of cases.ONE_OF_EACH go through every regime, and no others run.

With --quick, an architecture's first case goes through every regime, its others through those of run_quick, which are
about the model and not about the cache.

With --brief, every case goes through those.

Greedy tokens must be equal. Where they part, the oracle's own margin between its two best logits decides: below
TIE_MARGIN it is a tie, which is counted and printed, and the rest of that output is not compared; else it is a miss.
Exits 1 on any miss, and when there are more ties than MAX_TIE_SHARE.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/testing"))

import embedded  # noqa: E402
import forked as forked_oracle  # noqa: E402
import oracle  # noqa: E402
from berth_server import BerthServer, DidNotStart, api, dry_run, generate_request  # noqa: E402
from cases import CASES, NEW_TOKENS, ONE_OF_EACH, VOCAB  # noqa: E402

TIE_MARGIN = 1e-4
MAX_TIE_SHARE = 0.05
FP32_TOLERANCE = 1e-4
BF16_TOLERANCE = 2e-2
# The largest error of logprobs with an int8 cache, in float32, over that of bfloat16 on the same weights: how far a
# rounding reaches depends on the model, and bfloat16 measures it. int8 leaves an error of 0.006 of a head's norm where
# bfloat16 leaves 0.0017, but bfloat16 rounds every product too: 0.00 to 1.50 was measured on 16 families.
INT8_OVER_BF16 = 2
# Of requests that go on from an int8 checkpoint, against cold ones: the most mean KL divergence, in nats, and the least
# share of equal greedy tokens. Random weights forget slowly: up to 8e-3 and 89 % were measured
# (bench/quantised_bench.py), where a wrong or lost state gives more than 1e-1.
CHECKPOINT_KL = 2e-2
CHECKPOINT_AGREEMENT = 0.85
CHECKPOINT_STEPS = range(0, NEW_TOKENS, 8)
QUANTISED_PROMPTS = [1, 64, 300]
QUANTISED_TOKENS = 32
# What is compared to the bit: a request's logprobs alone with those in other company and chunks.
BIT_PROMPTS = [1, 64, 300]
BIT_TOKENS = 12
# Mamba-2 and the gated delta net, whose prefill in matrix form sums by the chunk.
SUMS_BY_CHUNK = ("mamba2", "falcon_h1", "bamba", "granitemoehybrid", "nemotron_h", "zamba2", "qwen3_next", "qwen3_5",
                 "olmo_hybrid")
REGIMES = ["alone", "logits", "concurrent", "chunk 1", "chunk 7", "preempted", "swapped", "saved", "cropped", "hit",
           "drafted", "forked", "bits", "bf16", "quantised", "dry run"]
BASE_FLAGS = ["--poison_cache", "--check_integrity", "--log_level=warning", "--block_tokens=16", "--max_running=16",
              "--max_sequence_tokens=400", f"--max_logprobs={VOCAB}"]


class Outcome:
    def __init__(self):
        self.rows = self.ties = self.misses = 0
        self.notes = []

    def miss(self, note):
        self.misses += 1
        self.notes.append(note)

    def compare(self, got, answers, index, what, skip=0, tie_margin=TIE_MARGIN):
        """Tokens against the oracle's from the `skip`-th on, of which the request may have asked for fewer."""
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


def alone(server, answers, outcome, **fields):
    for i, prompt in enumerate(answers["prompts"]):
        got = list(complete(server, answers, prompt, share_prefix=False, **fields).token_ids)
        outcome.compare(got, answers, i, f"prompt of {len(prompt)}")
    server.wait_idle()


def predicted(server, folder, flags, outcome):
    """A dry run's sizes against those of the server, which runs with these flags."""
    info = server.model_info()
    printed = dry_run(folder, *flags)
    outcome.rows += 1
    if f" {info.num_parameters} parameters " not in printed or f"({info.weight_bytes} bytes)\n" not in printed:
        outcome.miss(f"{info.num_parameters} parameters in {info.weight_bytes} bytes, but the dry run says: {printed}")


def own_answers(server, answers, rows, **fields):
    """The server's own cold outputs, in the oracle's form: what the same requests are compared with in other regimes.
    rows: {index: (prompt, count of tokens)}."""
    own = {"tokens": {}, "margins": {}, "forced_eos": None}
    for i, (prompt, count) in rows.items():
        response = complete(server, answers, prompt, count, logprobs=2, share_prefix=False, **fields)
        own["tokens"][i] = list(response.token_ids)
        own["margins"][i] = [entry.top[0].logprob - entry.top[1].logprob for entry in response.logprobs]
    return own


TURN = 21


def hit(server, answers, outcome, prompt_dependent=False):
    """Requests that go on from what the cache still holds: a prompt again, and its output's first tokens after it.
    prompt_dependent: the model computes those differently as prompt than as output, so the oracle of the second is the
    server's cold run."""
    longer_answers, skip = answers, TURN
    if prompt_dependent:
        rows = {i: (prompt + answers["tokens"][i][:TURN], NEW_TOKENS - TURN) for i, prompt in enumerate(answers["prompts"])}
        longer_answers, skip = own_answers(server, answers, rows), 0
    for i, prompt in enumerate(answers["prompts"]):
        complete(server, answers, prompt, max_tokens=TURN)
        again = complete(server, answers, prompt)
        outcome.compare(list(again.token_ids), answers, i, f"prompt of {len(prompt)} again")
        longer = complete(server, answers, prompt + answers["tokens"][i][:TURN], NEW_TOKENS - TURN)
        outcome.compare(list(longer.token_ids), longer_answers, i, f"prompt of {len(prompt)} and {TURN} tokens", skip)
        if longer.usage.cached_tokens < len(prompt):
            outcome.miss(f"prompt of {len(prompt)} and {TURN} tokens: only {longer.usage.cached_tokens} cached")
    server.wait_idle()


def logits(server, answers, arrays, outcome):
    """Whole distributions, as far as the tokens before them are equal."""
    for i, prompt in enumerate(answers["prompts"]):
        response = complete(server, answers, prompt, logprobs=VOCAB, share_prefix=False)
        for step, expected in zip(oracle.LOGIT_STEPS, arrays["logprobs"][i]):
            if list(response.token_ids)[:step] != answers["tokens"][i][:step]:
                break
            outcome.rows += 1
            error = np.abs(distribution(response.logprobs[step]) - expected).max()
            if not error <= FP32_TOLERANCE:
                outcome.miss(f"prompt of {len(prompt)}, step {step}: a logprob is off by {error:.1e}")


SCORED_PROMPT = 64


def prompt_logprobs(name, server, answers, arrays, outcome):
    """Whole distributions in the place of prompt tokens: the prompt is a prompt of the oracle's and its output."""
    if server.model_info().limits.max_encoder_tokens:
        return  # the oracle's decoder starts from one token or a few
    # Where a token is computed differently as prompt, or in a longer one, the output's first token alone compares.
    alone_ = name.startswith(("nemotron_h", "zamba2")) or name.endswith(("-dynamic", "-longrope"))
    steps = [(k, step) for k, step in enumerate(oracle.LOGIT_STEPS) if step <= (0 if alone_ else 20)]
    for i, prompt in enumerate(answers["prompts"]):
        if len(prompt) != SCORED_PROMPT:
            continue
        ids = prompt + answers["tokens"][i][: steps[-1][1] + 1]
        scored = complete(server, answers, ids, max_tokens=1, prompt_logprobs=VOCAB).prompt_logprobs
        outcome.rows += 1
        if [entry.token_id for entry in scored] != ids[1:]:
            outcome.miss("the prompt's logprobs are of other tokens")
        for k, step in steps:
            outcome.rows += 1
            entry = scored[len(prompt) + step - 1]
            expected = arrays["logprobs"][i][k]
            error = max(np.abs(distribution(entry) - expected).max(), abs(entry.logprob - expected[entry.token_id]))
            if not error <= FP32_TOLERANCE:
                outcome.miss(f"prompt token {len(prompt) + step}: a logprob is off by {error:.1e}")


def bf16(server, answers, arrays, outcome):
    """Against float32 arithmetic on the same rounded weights. Returns the largest error."""
    largest = 0
    assert server.model_info().dtype == "bfloat16"
    for i, prompt in enumerate(answers["prompts"]):
        got = distribution(complete(server, answers, prompt, max_tokens=1, logprobs=VOCAB).logprobs[0])
        error = np.abs(got - arrays["bf16"][i]).max()
        largest = max(largest, error)
        outcome.rows += 1
        if not error <= BF16_TOLERANCE:
            outcome.miss(f"prompt of {len(prompt)}: a logprob is off by {error:.1e}")
    return largest


def together(server, answers, outcome, requests=16, more=0):
    """All prompts and repeats at once, with different lengths, so that rows come and go. `more`: tokens past those that
    the oracle knows, to keep them together for longer."""
    prompts = answers["prompts"]
    picks = [n % len(prompts) for n in range(requests)]
    lengths = [NEW_TOKENS if n < len(prompts) else 5 + 11 * ((n - len(prompts)) % 6) for n in range(requests)]
    more = more if answers["forced_eos"] is None else 0
    with concurrent.futures.ThreadPoolExecutor(requests) as pool:
        futures = [pool.submit(complete, server, answers, prompts[i], min(length, NEW_TOKENS) + more)
                   for i, length in zip(picks, lengths)]
        for i, length, future in zip(picks, lengths, futures):
            outcome.compare(list(future.result().token_ids)[:length], answers, i,
                            f"prompt of {len(prompts[i])} among {requests}")
    server.wait_idle()


REQUESTS_TOGETHER, TOKENS_TOGETHER = 40, 30


def least_arena(groups, num_tokens):
    """A sequence of this length takes no fewer bytes, and more where its blocks are not full."""
    sequence = sum(group.bytes_per_sequence for group in groups)
    tokens = sum(group.bytes_per_token * min(num_tokens, group.window or group.chunk or num_tokens) for group in groups)
    return sequence + tokens


def preempted(folder, base, groups, answers, outcome, swapped):
    """Arenas so small that sequences must give way, and are computed again; then with a host tier, where their cache is
    copied out and in whatever that costs. States alone, or windows of no more than a block, never grow, so never have to."""
    grows = any(group.bytes_per_token and not 0 < group.window <= 16 for group in groups)
    longest = max(map(len, answers["prompts"])) + NEW_TOKENS + TOKENS_TOGETHER
    found = False  # an arena in which sequences gave way
    # The smallest arenas may hold but one sequence at a time, and larger ones all; finer steps if none lies between.
    for step in (1.4, 1.05):
        arena = least_arena(groups, longest)
        while arena < 16 << 20:
            flags = [*base, f"--arena={arena}", "--prefill_chunk_tokens=64"]
            arena = int(arena * step)
            try:
                with BerthServer(folder, *flags) as server:
                    if server.model_info().limits.max_sequence_tokens < longest:
                        continue
                    together(server, answers, outcome, REQUESTS_TOGETHER, TOKENS_TOGETHER)
                    if not server.load().preemptions and grows:
                        continue
            except DidNotStart:
                continue
            found = True
            with BerthServer(folder, *flags, "--host_tier=1GiB", "--always_copy") as server:
                # Whether an arena just too small is short of room once more depends on when the requests arrive. Then
                # the next arena may be, or the finer steps find one.
                for _ in range(10):
                    together(server, answers, swapped, REQUESTS_TOGETHER, TOKENS_TOGETHER)
                    if not grows or server.load().swap_outs:
                        return
    if found:
        swapped.miss(f"nothing was swapped in arenas of up to {arena} bytes")
    else:
        outcome.miss(f"no preemption in arenas of up to {arena} bytes")


def shares_prefixes(name, groups):
    """Not where a token's keys depend on the sequence's length too, nor behind an encoder."""
    return not name.endswith(("-dynamic", "-longrope")) and all(group.kind != "cross" for group in groups)


def stable_flags(name):
    """So that no bit depends on the chunks."""
    return ["--chunk_invariant_scans"] if name.startswith(SUMS_BY_CHUNK) else []


def has_keys(groups):
    """Whether a sequence has keys and values, not states alone."""
    return any(group.bytes_per_token for group in groups)


def quantised(name, folder, base, answers, arrays, bf16_error, outcome):
    """int8 keys and values: logprobs near the oracle's, and a sequence's tokens alone equal to those in any company."""
    picks = [i for i, prompt in enumerate(answers["prompts"]) if len(prompt) in QUANTISED_PROMPTS]
    flags = [*base, "--arena=64MiB", "--cache_dtype=int8", "--dtype=float32"]
    with BerthServer(folder / "bf16", *flags) as server:
        for i in picks:
            response = complete(server, answers, answers["prompts"][i], max_tokens=1, logprobs=VOCAB)
            error = np.abs(distribution(response.logprobs[0]) - arrays["bf16"][i]).max()
            outcome.rows += 1
            if not error <= INT8_OVER_BF16 * bf16_error:
                outcome.miss(f"prompt of {len(answers['prompts'][i])}: a logprob is off by {error:.1e}")
    for chunk in (64, 7):
        with BerthServer(folder, *flags, *stable_flags(name), f"--prefill_chunk_tokens={chunk}") as server:
            if chunk == 64:
                stored = {group.dtype for group in server.model_info().cache_groups if group.bytes_per_token}
                assert "int8" in stored and stored <= {"int8", "float32"}, stored
                own = own_answers(server, answers, {i: (answers["prompts"][i], QUANTISED_TOKENS) for i in picks})
            with concurrent.futures.ThreadPoolExecutor(len(picks)) as pool:
                prompts = [answers["prompts"][i] for i in picks]
                responses = pool.map(lambda prompt: complete(server, answers, prompt, QUANTISED_TOKENS), prompts)
                for i, prompt, response in zip(picks, prompts, responses):
                    outcome.compare(list(response.token_ids), own, i, f"prompt of {len(prompt)} at once, chunks of {chunk}, "
                                    "against it alone", tie_margin=0)
            server.wait_idle()


def quantised_checkpoints(folder, base, answers, outcome):
    """int8 checkpoints: cold outputs, and those with guesses and their roll-backs, are the oracle's as ever; what goes on
    from a checkpoint is near a cold run."""
    flags = [*base, "--arena=64MiB", "--prefill_chunk_tokens=64", "--dtype=float32", "--state_checkpoint_dtype=int8"]
    contexts = [prompt + answers["tokens"][i][:step] for i, prompt in enumerate(answers["prompts"])
                for step in CHECKPOINT_STEPS if len(prompt) + step > 1]
    exact, near = [], []
    with BerthServer(folder, *flags) as server:
        assert any(group.kind == "checkpoint" and group.dtype == "int8" for group in server.model_info().cache_groups)
        alone(server, answers, outcome)
        alone(server, answers, outcome, draft_tokens=8)
        for i, context in enumerate(contexts):
            cold = complete(server, answers, context, 1, logprobs=VOCAB, share_prefix=False)
            complete(server, answers, context[:-1], 1, cache_salt=str(i))
            hit_ = complete(server, answers, context, 1, logprobs=VOCAB, cache_salt=str(i))
            if hit_.usage.cached_tokens != len(context) - 1:
                outcome.miss(f"context of {len(context)}: only {hit_.usage.cached_tokens} cached")
            exact.append(distribution(cold.logprobs[0]).astype(np.float64))
            near.append(distribution(hit_.logprobs[0]).astype(np.float64))
        server.wait_idle()
    exact, near = np.stack(exact), np.stack(near)
    outcome.rows += 1
    kl = np.mean(np.sum(np.exp(exact) * (exact - near), -1))
    agreement = np.mean(exact.argmax(-1) == near.argmax(-1))
    if not (kl <= CHECKPOINT_KL and agreement >= CHECKPOINT_AGREEMENT):
        outcome.miss(f"from int8 checkpoints: KL {kl:.1e}, {agreement:.1%} of the greedy tokens")
    return kl, agreement


def logprob_bits(server, answers, prompt):
    response = complete(server, answers, prompt, BIT_TOKENS, logprobs=20, share_prefix=False)
    return [(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
            for entry in response.logprobs]


def result_bits(server, answers, prompt):
    return logprob_bits(server, answers, prompt), embedded.embed(server, prompt)


def bits(name, folder, base, answers, outcome):
    """Logprobs and embeddings alone, among others, and prefilled in chunks: equal to the last bit. Where the
    recurrence's prefill sums by chunk, with --chunk_invariant_scans; without it in company alone."""
    prompts = [prompt for prompt in answers["prompts"] if len(prompt) in BIT_PROMPTS]
    stable = stable_flags(name)
    settings = [(stable, 512), (stable, 7), (stable, 1)]
    for extra, chunk in [([], 512), *settings] if stable else settings:
        flags = [*base, *extra, "--arena=64MiB", "--dtype=float32", f"--prefill_chunk_tokens={chunk}",
                 "--max_step_tokens=4096"]
        with BerthServer(folder, *flags) as server:
            if chunk == 512:
                expected = [result_bits(server, answers, prompt) for prompt in prompts]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                indices = [*range(len(prompts))] * 3
                futures = [(i, pool.submit(result_bits, server, answers, prompts[i])) for i in indices]
            for i, future in futures:
                outcome.rows += 1
                if future.result() != expected[i]:
                    outcome.miss(f"prompt of {len(prompts[i])}, chunks of {chunk}: other bits than alone")
            server.wait_idle()


SAVED_TOKENS = (7, 16, 40)
BESIDE_SAVED = 15
MAX_TOKENS = 400  # of BASE_FLAGS


def saved(folder, base, answers, outcome):
    """Saved after some tokens, and resumed by another process, which has the saved cache or computes it again."""
    picks = [(i, n) for i in range(len(answers["prompts"])) for n in SAVED_TOKENS][::4]
    with tempfile.TemporaryDirectory(prefix="berth-parity-") as sessions:
        flags = [*base, "--arena=64MiB", "--prefill_chunk_tokens=64", f"--session_dir={sessions}"]
        with BerthServer(folder, *flags) as server:
            for i, n in picks:
                # Alone, or with no more tokens than are compared, one could be done before its client cancels it.
                longest = NEW_TOKENS
                if answers["forced_eos"] is None:
                    started = answers["request"].get("decoder_token_ids", {}).get("ids", [])
                    longest = MAX_TOKENS - 1 - max(len(answers["prompts"][i]), len(started) + 1)
                request = generate_request(ids=answers["prompts"][i], max_tokens=longest, ignore_eos=True,
                                           **answers["request"])
                others = [server.inference.Generate(request, timeout=300) for _ in range(BESIDE_SAVED)]
                request.session_id = f"s{i}-{n}"
                call = server.inference.Generate(request, timeout=300)
                count = 0
                for message in call:
                    count += len(message.token_ids)
                    if count >= n:
                        call.cancel()
                        break
                for other in others:
                    other.cancel()
            server.wait_idle()
        for resumed_flags in ([], ["--copy_bytes_per_step=1KiB"]):
            shutil.copytree(sessions, sessions + "-again")
            again = flags[:-1] + [f"--session_dir={sessions}-again"]
            with BerthServer(folder, *again, *resumed_flags) as server:
                listed = server.sessions.List(api().sessions_pb2.ListSessionsRequest(), timeout=30).sessions
                if len(listed) != len(picks) or all(session.ended for session in listed):
                    outcome.miss(f"{len(listed)} sessions of {len(picks)} were saved, none of them midway")
                for i, n in picks:
                    request = api().sessions_pb2.ResumeSessionRequest(session_id=f"s{i}-{n}")
                    tokens = [t for message in server.sessions.Resume(request, timeout=300) for t in message.token_ids]
                    outcome.compare(tokens[:NEW_TOKENS], answers, i,
                                    f"prompt of {len(answers['prompts'][i])}, saved after {n}")
                server.wait_idle()
            shutil.rmtree(sessions + "-again")


def outputs_of(response):
    return [list(output.token_ids) for output in (response, *response.other_outputs)]


def search_beams(server, answers, row):
    num_beams, length_penalty, early_stopping = row["settings"]
    pb = api().inference_pb2
    request = generate_request(ids=row["prompt"], max_tokens=forked_oracle.NEW_TOKENS, ignore_eos=True, n=num_beams,
                               **answers["request"])
    request.stopping.stop_token_ids.extend(row["ends"])
    request.beam_search.num_beams = num_beams
    request.beam_search.length_penalty = length_penalty
    request.beam_search.early_stopping = {False: pb.EARLY_STOPPING_FALSE, True: pb.EARLY_STOPPING_TRUE,
                                          "never": pb.EARLY_STOPPING_NEVER}[early_stopping]
    return outputs_of(server.inference.Complete(request, timeout=300))


def sample(server, answers, prompt, seed, n):
    request = generate_request(ids=prompt, max_tokens=forked_oracle.NEW_TOKENS, ignore_eos=True, temperature=1.0, n=n,
                               **answers["request"])
    request.sampling.seed = seed
    return outputs_of(server.inference.Complete(request, timeout=300))


def forked(server, answers, rows, outcome):
    """Beam searches against transformers' (`rows`), and samples against those of requests with their seeds; all at once."""
    prompts = [prompt for prompt in answers["prompts"] if len(prompt) in forked_oracle.PROMPT_LENGTHS]
    seed = forked_oracle.SEED
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search_beams, server, answers, row) for row in rows]
        several = [pool.submit(sample, server, answers, prompt, seed, 3) for prompt in prompts]
        single = [[pool.submit(sample, server, answers, prompt, seed + i, 1) for i in range(3)] for prompt in prompts]
    for row, future in zip(rows, searches):
        outcome.rows += 1
        if future.result() == row["beams"]:
            continue
        note = f"prompt of {len(row['prompt'])}, search {row['settings']}: other beams, margin {row['margin']:.2e}"
        if row["margin"] < TIE_MARGIN:
            outcome.ties += 1
            outcome.notes.append("tie: " + note)
        else:
            outcome.miss(note)
    for prompt, together_, alone_ in zip(prompts, several, single):
        outcome.rows += 1
        if together_.result() != [future.result()[0] for future in alone_]:
            outcome.miss(f"prompt of {len(prompt)}: 3 samples are not those of 3 requests")
    server.wait_idle()


def is_first(name):
    """Whether the case is its architecture's first."""
    return name == next(other for other, case in CASES.items() if case.config == CASES[name].config)


def run_quick(name):
    folder, answers, arrays = oracle.load(name)
    outcomes = {regime: Outcome() for regime in REGIMES}
    base = base_flags(name)
    with BerthServer(folder, *base, "--arena=64MiB", "--prefill_chunk_tokens=7") as server:
        predicted(server, folder, [*base, "--arena=64MiB"], outcomes["dry run"])
        alone(server, answers, outcomes["alone"])
        logits(server, answers, arrays, outcomes["logits"])
        prompt_logprobs(name, server, answers, arrays, outcomes["logits"])
        embedded.compare(name, server, folder, answers, outcomes["logits"])
        together(server, answers, outcomes["chunk 7"])
    with BerthServer(folder / "bf16", *base, "--arena=64MiB") as server:
        predicted(server, folder / "bf16", [*base, "--arena=64MiB"], outcomes["dry run"])
        bf16(server, answers, arrays, outcomes["bf16"])
    return outcomes


def base_flags(name):
    case = CASES[name]
    return BASE_FLAGS + ([f"--attention_window={case.window}", f"--sink_tokens={case.sinks}"] if case.window else [])


def run_case(name, device):
    folder, answers, arrays = oracle.load(name)
    beams = forked_oracle.load(name, folder, answers)
    outcomes = {regime: Outcome() for regime in REGIMES}
    base = base_flags(name)
    with BerthServer(folder, *base, "--arena=64MiB", "--prefill_chunk_tokens=64") as server:
        groups = server.model_info().cache_groups
        predicted(server, folder, [*base, "--arena=64MiB"], outcomes["dry run"])
        alone(server, answers, outcomes["alone"])
        logits(server, answers, arrays, outcomes["logits"])
        prompt_logprobs(name, server, answers, arrays, outcomes["logits"])
        embedded.compare(name, server, folder, answers, outcomes["logits"])
        alone(server, answers, outcomes["drafted"], draft_tokens=8)
        together(server, answers, outcomes["concurrent"])
        if shares_prefixes(name, groups):
            hit(server, answers, outcomes["hit"], prompt_dependent=name.startswith(("nemotron_h", "zamba2")))
        forked(server, answers, beams, outcomes["forked"])
    for chunk in (1, 7):
        flags = [*base, "--arena=64MiB", f"--prefill_chunk_tokens={chunk}"]
        with BerthServer(folder, *flags) as server:
            together(server, answers, outcomes[f"chunk {chunk}"])
    with BerthServer(folder, *base, "--arena=64MiB", "--prefill_chunk_tokens=64", "--crop_every=9") as server:
        together(server, answers, outcomes["cropped"])
    preempted(folder, base, groups, answers, outcomes["preempted"], outcomes["swapped"])
    if device == "cpu":  # on a GPU, the libraries choose a product's kernel by its number of rows
        bits(name, folder, base, answers, outcomes["bits"])
    saved(folder, base, answers, outcomes["saved"])
    with BerthServer(folder / "bf16", *base, "--arena=64MiB") as server:
        predicted(server, folder / "bf16", [*base, "--arena=64MiB"], outcomes["dry run"])
        bf16_error = bf16(server, answers, arrays, outcomes["bf16"])
    if has_keys(groups):
        quantised(name, folder, base, answers, arrays, bf16_error, outcomes["quantised"])
    if any(group.kind == "recurrent" for group in groups):
        quantised_checkpoints(folder, base, answers, outcomes["quantised"])
    return outcomes


def run_one(name, quick, device):
    """What came of one case, by regime. Its fault is a miss, and ends no other case."""
    try:
        return run_quick(name) if quick else run_case(name, device)
    except Exception:  # noqa: BLE001
        outcomes = {regime: Outcome() for regime in REGIMES}
        outcomes["alone"].miss(traceback.format_exc())
        return outcomes


class Table:
    """Prints a row for each case, and the sum at the end."""

    def __init__(self, log):
        self.log = open(log, "w", encoding="utf-8") if log else None  # noqa: SIM115
        self.rows = self.ties = self.misses = 0
        self.missed = []
        self.print(f"{'case':22}" + "".join(f"{regime:>14}" for regime in REGIMES))

    def print(self, line):
        for file in (sys.stdout, self.log):
            if file:
                print(line, file=file, flush=True)

    def add(self, name, outcomes):
        self.print(f"{name:22}" + "".join(f"{outcomes[regime].cell():>14}" for regime in REGIMES))
        for regime, outcome in outcomes.items():
            self.rows, self.ties, self.misses = (self.rows + outcome.rows, self.ties + outcome.ties,
                                                 self.misses + outcome.misses)
            for note in outcome.notes[:4]:
                self.print(f"    {regime}: {note}")
            if outcome.misses:
                self.missed += [f"{name}, {regime}: {note}" for note in outcome.notes if not note.startswith("tie: ")][:1]

    def end(self):
        self.print(f"{self.rows} comparisons, {self.ties} ties (margin below {TIE_MARGIN}), {self.misses} misses")
        for note in self.missed:  # again, where the end of a log shows them
            self.print(f"MISS {note}")
        return self.misses > 0 or self.ties > MAX_TIE_SHARE * self.rows


def set_device(device):
    BASE_FLAGS.append(f"--device={device}")


def run_all(names, is_quick, arguments, table):
    """Runs the cases in processes of their own, each with a server at a time. Begins none when the time has passed."""
    until = time.monotonic() + arguments.seconds if arguments.seconds is not None else float("inf")
    waiting, running = list(names), {}
    context = multiprocessing.get_context("spawn")  # gRPC has threads
    with concurrent.futures.ProcessPoolExecutor(arguments.processes, context, set_device, (arguments.device,)) as pool:
        while waiting or running:
            while waiting and len(running) < arguments.processes and time.monotonic() < until:
                name = waiting.pop(0)
                running[pool.submit(run_one, name, is_quick(name), arguments.device)] = name
            if not running:
                break
            for future in concurrent.futures.wait(running, return_when="FIRST_COMPLETED").done:
                table.add(running.pop(future), future.result())
    for name in waiting:
        table.print(f"NOT REACHED {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="which cases; default: all")
    parser.add_argument("--first", action="store_true", help="a case of each kind of cache and of layer")
    parser.add_argument("--quick", action="store_true", help="all regimes for an architecture's first case only")
    parser.add_argument("--brief", action="store_true", help="the regimes of run_quick for every case")
    parser.add_argument("--device", default="cpu", help="the server's; on a GPU nothing is compared to the bit")
    parser.add_argument("--processes", type=int, default=1, help="cases at once")
    parser.add_argument("--seconds", type=float, help="begin no case after this time, and name those that are left")
    parser.add_argument("--log", help="write the output to this file too")
    arguments = parser.parse_args()
    table = Table(arguments.log)
    names = arguments.cases or (ONE_OF_EACH if arguments.first else list(CASES))
    run_all(names, lambda name: arguments.brief or arguments.quick and not is_first(name), arguments, table)
    if table.end():
        sys.exit(1)


if __name__ == "__main__":
    main()
