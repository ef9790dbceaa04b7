"""The regimes of parity: ways through the server, each a function. It asks, and counts in an Outcome what came of it."""

import concurrent.futures
import shutil
import tempfile

import numpy as np

import embedded
import forked as forked_oracle
import oracle
from berth_server import BerthServer, DidNotStart, api, dry_run, generate_request
from cases import NEW_TOKENS, VOCAB
from comparison import TIE_MARGIN, complete, distribution, own_answers, stable_flags

FP32_TOLERANCE = 1e-4
BF16_TOLERANCE = 2e-2
# What is compared to the bit: a request's logprobs alone with those in other batches and chunks.
BIT_PROMPTS = [1, 64, 300]
BIT_TOKENS = 12


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


TURN = 21


def hit(server, answers, outcome, prompt_dependent=False):
    """Requests that resume from what the cache still holds: a prompt again, and its output's first tokens after it.
    If prompt_dependent, the model computes those differently as prompt than as output, so the oracle of the second is
    the server's cold run."""
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
    """Arenas so small that sequences must be preempted, and are computed again; then with a host tier, where their
    cache is copied out and in whatever that costs. States alone, or windows of no more than a block, never grow, so
    never have to."""
    grows = any(group.bytes_per_token and not 0 < group.window <= 16 for group in groups)
    longest = max(map(len, answers["prompts"])) + NEW_TOKENS + TOKENS_TOGETHER
    found = False  # an arena in which sequences were preempted
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


def logprob_bits(server, answers, prompt):
    response = complete(server, answers, prompt, BIT_TOKENS, logprobs=20, share_prefix=False)
    return [(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
            for entry in response.logprobs]


def result_bits(server, answers, prompt):
    return logprob_bits(server, answers, prompt), embedded.embed(server, prompt)


def bits(name, folder, base, answers, outcome):
    """Logprobs and embeddings alone, among others, and prefilled in chunks: equal to the last bit. Where the
    recurrence's prefill sums by chunk, with --chunk_invariant_scans; without it only in a batch."""
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
