"""Embeddings: those of transformers in float32, and the same bits alone, in a batch, in any chunks, and in vLLM's
form."""

import concurrent.futures
import os
import random
import sys

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
import random_models  # noqa: E402
from berth_server import ROOT, BerthServer, api  # noqa: E402

TOLERANCE = 1e-4  # of the largest number
LENGTHS = [1, 2, 17, 150, 300]
# Attention, a gated delta net with experts, a hybrid with Mamba-2, and sliding windows.
MODELS = ["llama", "qwen3_next", "falcon_h1-demo", "gemma3-demo"]
RECURRENT = ["qwen3_next", "falcon_h1-demo"]
FLAGS = ["--max_sequence_tokens=512", "--check_integrity", "--poison_cache"]


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """A folder and its name."""
    name = request.param
    if name.endswith("-demo"):
        return os.path.join(ROOT, "models/demo", name), name
    return random_models.make(str(tmp_path_factory.mktemp("models")), name), name


def prompts():
    generator = random.Random(5)
    return [[generator.randrange(3, 400) for _ in range(length)] for length in LENGTHS]


def embed(server, ids, pooling="LAST", normalize=False, **fields):
    pb = api().inference_pb2
    return server.inference.Embed(pb.EmbedRequest(token_ids=pb.TokenIds(ids=ids), pooling=f"POOLING_{pooling}",
                                                  normalize=normalize, **fields), timeout=300)


def all_of(server, ids):
    """Under each pooling."""
    return [list(embed(server, ids, pooling).embedding) for pooling in ("LAST", "MEAN")]


def in_company(server):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        return list(pool.map(lambda ids: all_of(server, ids), prompts() * 2))


def oracle(folder):
    """What transformers gives for each prompt: the last state, and the mean of all."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    expected = []
    with torch.no_grad():
        for ids in prompts():
            states = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].double()
            expected.append([states[-1].tolist(), states.mean(0).tolist()])
    return expected


def assert_close(embedding, expected):
    assert len(embedding) == len(expected)
    largest = max(map(abs, expected))
    assert max(abs(a - b) for a, b in zip(embedding, expected)) <= TOLERANCE * largest


def test_are_those_of_transformers_after_hits_too(model):
    folder, name = model
    expected = oracle(folder)
    with BerthServer(folder, "--dtype=float32", "--prefill_chunk_tokens=64", *FLAGS) as server:
        for _ in range(2):  # the second time the cache holds the prompts
            for ids, (last, mean) in zip(prompts(), expected):
                assert_close(embed(server, ids).embedding, last)
                assert_close(embed(server, ids, "MEAN").embedding, mean)
        assert embed(server, prompts()[4]).usage.cached_tokens > 0
        whole = embed(server, prompts()[4], "MEAN")
        assert whole.usage.cached_tokens == 0 and whole.usage.completion_tokens == 0
        for pooling, numbers in zip(("LAST", "MEAN"), expected[3]):
            length = sum(x * x for x in numbers) ** 0.5
            assert_close(embed(server, prompts()[3], pooling, normalize=True).embedding, [x / length for x in numbers])
        server.wait_idle()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_and_chunks_change_no_bit(model, dtype):
    folder, name = model
    # The recurrences' matrix forms sum by the chunk: docs/numerics.md.
    flags = ["--chunk_invariant_scans"] if name in RECURRENT else []
    alone = None
    for chunk in (512, 7, 1):
        with BerthServer(folder, *FLAGS, *flags, "--share_prefixes=false", "--max_step_tokens=4096",
                         f"--dtype={dtype}", f"--prefill_chunk_tokens={chunk}") as server:
            if alone is None:
                alone = [all_of(server, ids) for ids in prompts()]
            assert in_company(server) == alone * 2, f"chunks of {chunk}"


def test_refusals_name_field_value_and_limit(tmp_path):
    with BerthServer(os.path.join(ROOT, "models/demo/gemma3-demo"), *FLAGS) as server:
        assert len(embed(server, [5] * 512).embedding) == server.model_info().hidden_size
        with pytest.raises(grpc.RpcError) as error:
            embed(server, [5] * 513)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details() == "prompt: 513 tokens exceed the limit of 512 tokens"
        server.wait_idle()
    folder = str(tmp_path / "t5")
    random_models.save(folder, "T5Config", dict(random_models.T5, vocab_size=100))
    with BerthServer(folder) as server:
        with pytest.raises(grpc.RpcError) as error:
            embed(server, [5, 6])
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details() == "input: embeddings are for models without an encoder; t5 has one"
