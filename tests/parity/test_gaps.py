"""What transformers 5.24.0's caches refuse or get wrong, as far as their code shows it, and Berth does: a test for each.

    a  recurrent states cannot be cropped, and full windows only if the cache has recorded their past
    b  a quantised cache cannot be cropped
    c  a hybrid's cache says that its length has no limit
    d  a sliding window of one token never drops any
    e  lengths are those of the whole batch: no row is cropped, or starts anew, alone
    f  recurrent states cannot go back, so that no tokens can be drafted on recurrent models
    g  recurrent_gemma cannot continue from a chunk, serve two sequences at once, or reuse a prefix
"""

import os
import sys

import grpc
import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path[:0] = [os.path.join(ROOT, "tools/parity"), os.path.join(ROOT, "tests/testing")]
import oracle  # noqa: E402
import regimes  # noqa: E402
from berth_server import ENDLESS_LIMIT, BerthServer, endless_request  # noqa: E402
from comparison import BASE_FLAGS, Outcome, complete  # noqa: E402

FLAGS = [*BASE_FLAGS, "--arena=64MiB"]


def expect_oracle(name, check, *flags):
    folder, answers, _ = oracle.load(name)
    outcome = Outcome()
    with BerthServer(folder, *FLAGS, *flags) as server:
        check(server, answers, outcome)
        if any(flag.startswith("--crop_every=") for flag in flags):
            server.check_it_cropped()
        load = server.load()
    assert outcome.rows and not outcome.misses, outcome.notes
    return load


@pytest.mark.parametrize("name", ["llama", "mistral", "mamba2", "falcon_h1", "recurrent_gemma", "lfm2"])
def test_a_every_kind_is_cropped(name):
    expect_oracle(name, regimes.alone, "--crop_every=5")


@pytest.mark.parametrize("name", ["llama", "falcon_h1"])
def test_b_a_quantised_cache_is_cropped_and_shared(name):
    folder, answers, _ = oracle.load(name)
    prompts = [prompt for prompt in answers["prompts"] if 32 < len(prompt) <= 100]  # longer than two blocks
    assert prompts
    outputs = []
    for flags in ([], ["--crop_every=5"]):
        with BerthServer(folder, *FLAGS, "--cache_dtype=int8", *flags) as server:
            for from_index in (False, True):  # the second time from the prefix index
                responses = [complete(server, answers, prompt, 16) for prompt in prompts]
                outputs.append([list(response.token_ids) for response in responses])
                assert all((response.usage.cached_tokens > 0) == from_index for response in responses)
                server.wait_idle()
            if flags:
                server.check_it_cropped()
    assert all(output == outputs[0] for output in outputs)


@pytest.mark.parametrize("name", ["falcon_h1", "zamba2"])
def test_c_a_hybrid_says_its_limit(name):
    folder, answers, _ = oracle.load(name)
    with BerthServer(folder, *FLAGS) as server:
        assert server.model_info().limits.max_sequence_tokens == 400
        with pytest.raises(grpc.RpcError, match="400"):
            complete(server, answers, answers["prompts"][-1], max_tokens=101)


def test_d_a_window_of_one_holds_one_block():
    def check(server, answers, outcome):
        regimes.alone(server, answers, outcome)
        stream = server.inference.Generate(endless_request(ids=answers["prompts"][0]), timeout=600)
        most = 0
        for message, _ in zip(stream, range(200)):
            live = [pool for pool in server.load().cache.pools if pool.kind == "sliding"]
            most = max(most, live[0].live_units + live[0].shared_units)
        stream.cancel()
        server.wait_idle()
        assert 1 <= most <= 2, most

    expect_oracle("mistral-window-1", check, "--share_prefixes=false", f"--max_sequence_tokens={ENDLESS_LIMIT}")


@pytest.mark.parametrize("name", ["llama", "falcon_h1"])
def test_e_rows_are_cropped_and_come_alone(name):
    expect_oracle(name, regimes.together, "--crop_every=7")


@pytest.mark.parametrize("name", ["mamba2", "falcon_h1", "qwen3_next-plain"])
def test_f_guesses_are_taken_back_on_recurrent_models(name):
    def check(server, answers, outcome):
        regimes.alone(server, answers, outcome, draft_tokens=8)

    load = expect_oracle(name, check)
    assert load.draft_tokens > load.accepted_draft_tokens, "nothing was ever taken back"


def test_g_recurrent_gemma_in_every_regime():
    expect_oracle("recurrent_gemma", regimes.together, "--prefill_chunk_tokens=7")
    expect_oracle("recurrent_gemma", regimes.hit)
