"""Logprobs of prompts, against transformers' own in float32: in chunks, after cache hits, beside others, with n."""

import concurrent.futures
import os
import random
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, generate_request  # noqa: E402

MODELS = [os.path.join(ROOT, "models/demo", name) for name in ("falcon_h1-demo", "gemma3-demo")]
TOLERANCE = 1e-4
LENGTHS = [1, 2, 17, 150, 300]
TOP = 5


def prompts():
    generator = random.Random(5)
    return [[generator.randrange(3, 400) for _ in range(length)] for length in LENGTHS]


def oracle(folder, ids):
    """[(token, logprob, [logprobs of the likeliest])] of each token but the first"""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [(token, row[token].item(), row.topk(TOP).values.tolist()) for token, row in zip(ids[1:], logprobs)]


def compare(entries, expected):
    assert [entry.token_id for entry in entries] == [token for token, _, _ in expected]
    for entry, (_, logprob, top) in zip(entries, expected):
        assert abs(entry.logprob - logprob) <= TOLERANCE
        assert [top.logprob for top in entry.top] == pytest.approx(top, abs=TOLERANCE)


@pytest.mark.parametrize("folder", MODELS, ids=["falcon_h1", "gemma3"])
def test_are_those_of_transformers_whatever_the_chunks_and_the_company(folder):
    expected = [oracle(folder, ids) for ids in prompts()]
    for chunk in (256, 7):
        with BerthServer(folder, "--dtype=float32", f"--prefill_chunk_tokens={chunk}", "--check_integrity",
                         "--poison_cache") as server:

            def score(ids, **fields):
                return server.inference.Complete(
                    generate_request(ids=ids, max_tokens=3, ignore_eos=True, prompt_logprobs=TOP, **fields),
                    timeout=300)

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                # Twice: the second time the cache holds all of it.
                answers = list(pool.map(score, prompts())) + list(pool.map(score, prompts()))
            for answer, rows in zip(answers, expected * 2):
                compare(answer.prompt_logprobs, rows)
                assert answer.usage.cached_tokens == 0
            several = score(prompts()[3], n=3)
            compare(several.prompt_logprobs, expected[3])
            assert not any(output.prompt_logprobs for output in several.other_outputs)
            server.wait_idle()


def test_come_in_the_first_message_of_a_stream():
    with BerthServer(MODELS[0]) as server:
        request = generate_request(ids=prompts()[2], max_tokens=4, ignore_eos=True, prompt_logprobs=0)
        messages = list(server.inference.Generate(request, timeout=300))
        assert len(messages[0].prompt_logprobs) == len(prompts()[2]) - 1
        assert all(entry.text and not entry.top for entry in messages[0].prompt_logprobs)
        assert not any(message.prompt_logprobs for message in messages[1:])
