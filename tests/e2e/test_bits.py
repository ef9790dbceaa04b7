"""What a request computes depends on that request alone: equal logprobs, to the bit, alone, in a batch, in chunks."""

import concurrent.futures
import os
import random
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, generate_request  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
GEMMA = os.path.join(ROOT, "models/demo/gemma3-demo")
FLAGS = ["--max_sequence_tokens=1024", "--max_step_tokens=4096", "--share_prefixes=false"]
LENGTHS = [1, 5, 16, 63, 200, 330]


def prompts():
    generator = random.Random(11)
    return [[generator.randrange(3, 400) for _ in range(length)] for length in LENGTHS]


def logprobs(server, ids):
    response = server.inference.Complete(generate_request(ids=ids, max_tokens=10, ignore_eos=True, logprobs=20),
                                         timeout=300)
    return [(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
            for entry in response.logprobs]


def in_company(server):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(logprobs, server, ids) for ids in prompts() * 2]
        return [future.result() for future in futures]


# The prefill of Mamba-2 (falcon_h1) sums by the chunk: with --chunk_invariant_scans it does not.
@pytest.mark.parametrize("model, chunks, flags",
                         [(DEMO, [512], []), (DEMO, [512, 7, 1], ["--chunk_invariant_scans"]), (GEMMA, [512, 7, 1], [])],
                         ids=["falcon_h1", "falcon_h1 stable", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_company_and_chunks_change_no_bit(model, chunks, flags, weights, dtype):
    alone = None
    for chunk in chunks:
        with BerthServer(model, *FLAGS, *flags, f"--dtype={dtype}", f"--weights={weights}",
                         f"--prefill_chunk_tokens={chunk}") as server:
            if alone is None:
                alone = [logprobs(server, ids) for ids in prompts()]
            assert in_company(server) == alone * 2, f"chunks of {chunk}"
