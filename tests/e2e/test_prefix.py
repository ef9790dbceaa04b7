"""Shared prefixes and draft tokens, as users meet them: what is counted, who shares with whom, equal outputs."""

import os
import random
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, api, generate_request  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
GEMMA = os.path.join(ROOT, "models/demo/gemma3-demo")
CHECKS = ["--poison_cache", "--check_integrity", "--max_sequence_tokens=2048"]


def prompt(length, seed):
    generator = random.Random(seed)
    return [generator.randrange(3, 400) for _ in range(length)]


def complete(server, ids, **fields):
    return server.inference.Complete(generate_request(ids=ids, max_tokens=12, ignore_eos=True, **fields), timeout=300)


@pytest.fixture(scope="module", params=[DEMO, GEMMA], ids=["falcon_h1", "gemma3"])
def server(request):
    with BerthServer(request.param, *CHECKS) as server:
        yield server
        server.wait_idle()


def test_a_conversation_goes_on_from_what_is_cached(server):
    first = prompt(300, seed=1)
    answer = complete(server, first)
    assert answer.usage.cached_tokens == 0
    second = first + list(answer.token_ids) + prompt(20, seed=2)
    cold = complete(server, second, share_prefix=False)
    hit = complete(server, second)
    assert cold.usage.cached_tokens == 0
    assert hit.usage.cached_tokens == len(first) + len(answer.token_ids) - 1  # the last token was never computed
    assert list(hit.token_ids) == list(cold.token_ids)


def test_hits_are_to_the_token_and_counted(server):
    base = prompt(200, seed=3)
    complete(server, base + prompt(30, seed=4))
    before = server.load()
    # The second that leaves the path at 200 finds the states that the first left there.
    complete(server, base + prompt(30, seed=5))
    third = complete(server, base + prompt(30, seed=6))
    after = server.load()
    assert third.usage.cached_tokens == 200
    assert after.prefix_queried_tokens - before.prefix_queried_tokens == 460
    hits = after.prefix_hit_tokens - before.prefix_hit_tokens
    replayed = after.prefix_replayed_tokens - before.prefix_replayed_tokens
    assert hits + replayed == 400


def test_the_second_request_of_a_system_prompt_hits(server):
    system = ("system", "You answer in one short sentence, and you never make anything up. " * 6)

    def answer(question, **fields):
        return server.inference.Complete(
            generate_request(chat=[system, ("user", question)], max_tokens=12, ignore_eos=True, **fields), timeout=300)

    request = api().inference_pb2.TokenizeRequest()
    request.chat.messages.add(role=system[0], content=system[1])
    request.chat.add_generation_prompt = False
    shared = len(server.inference.Tokenize(request, timeout=60).token_ids)
    assert answer("What is the time?").usage.cached_tokens == 0
    cold = answer("Name a colour.", share_prefix=False)
    hit = answer("Name a colour.")
    # At least up to the token that ends the message; the line break that the template writes after it is one more.
    assert hit.usage.cached_tokens >= shared - 1
    assert list(hit.token_ids) == list(cold.token_ids)


def test_salts_keep_tenants_apart(server):
    ids = prompt(150, seed=7)
    assert complete(server, ids, cache_salt="a").usage.cached_tokens == 0
    assert complete(server, ids + [5], cache_salt="b").usage.cached_tokens == 0
    assert complete(server, ids + [5]).usage.cached_tokens == 0
    assert complete(server, ids + [5], cache_salt="a").usage.cached_tokens >= 150


def test_guesses_change_nothing_but_the_number_of_steps(server):
    ids = prompt(40, seed=8) * 4
    request = dict(ids=ids, max_tokens=100, ignore_eos=True, share_prefix=False)
    plain = server.inference.Complete(generate_request(**request), timeout=300)
    before = server.load()
    drafted = server.inference.Complete(generate_request(**request, draft_tokens=8), timeout=300)
    after = server.load()
    assert list(drafted.token_ids) == list(plain.token_ids)
    assert after.draft_tokens > before.draft_tokens
    assert after.accepted_draft_tokens > before.accepted_draft_tokens


@pytest.mark.parametrize("model", [DEMO, GEMMA], ids=["falcon_h1", "gemma3"])
def test_aligned_prefill_chunks_give_the_bits_of_a_cold_run(model):
    def logprobs(response):
        return [(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
                for entry in response.logprobs]

    with BerthServer(model, *CHECKS, "--dtype=float32", "--prefill_chunk_tokens=64", "--aligned_prefill_chunks") as server:
        for length in (65, 200, 300):
            ids = prompt(length, seed=length)
            complete(server, ids)
            cold = complete(server, ids + [7, 8], logprobs=20, share_prefix=False)
            hit = complete(server, ids + [7, 8], logprobs=20)
            assert hit.usage.cached_tokens == length // 64 * 64
            assert logprobs(hit) == logprobs(cold)
