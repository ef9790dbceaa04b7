"""The regimes of int8: keys and values, and checkpoints of recurrent states."""

import concurrent.futures

import numpy as np

from berth_server import BerthServer
from cases import NEW_TOKENS, VOCAB
from comparison import complete, distribution, own_answers, stable_flags
from regimes import alone

# The largest error of logprobs with an int8 cache, in float32, over that of bfloat16 on the same weights. How far a
# rounding reaches depends on the model, and bfloat16 measures it. An int8 cache leaves an error of 0.006 of a head's
# norm where bfloat16 leaves 0.0017, but bfloat16 rounds every product too. Ratios of 0.00 to 1.50 were measured on 16
# families.
INT8_OVER_BF16 = 2
# Bounds for requests that resume from an int8 checkpoint, against cold ones: the most mean KL divergence, in nats, and
# the least share of equal greedy tokens. Random weights forget slowly: up to 8e-3 and 89 % were measured
# (bench/quantised_bench.py), where a wrong or lost state gives more than 1e-1.
CHECKPOINT_KL = 2e-2
CHECKPOINT_AGREEMENT = 0.85
CHECKPOINT_STEPS = range(0, NEW_TOKENS, 8)
QUANTISED_PROMPTS = [1, 64, 300]
QUANTISED_TOKENS = 32


def quantised(name, folder, base, answers, arrays, bf16_error, outcome):
    """int8 keys and values: logprobs near the oracle's, and a sequence's tokens alone equal to those in any batch."""
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
    """int8 checkpoints: cold outputs, and those with draft tokens and their roll-backs, are the oracle's as ever; what
    resumes from a checkpoint is near a cold run."""
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
