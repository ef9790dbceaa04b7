"""The client against a real server: every call, errors as it names them, tokens, and the ends of requests."""

import asyncio
import hashlib
import json
import math
import os

import pydantic
import pytest
from berth_client import (AsyncClient, Client, IncompleteOutputError, InvalidArgumentError, NotFoundError,
                          PermissionDeniedError, ResourceExhaustedError, UnauthenticatedError)
from berth_server import ENDLESS_TOKENS, ROOT, BerthServer, endless_server, wait_until

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
STORY = "Tell me a story about a fox."
ENDLESS = {"max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with endless_server(DEMO, f"--session_dir={tmp_path_factory.mktemp('sessions')}") as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.address, timeout=300) as client:
        yield client
    server.wait_idle()  # whatever the test left, has ended


class Sum(pydantic.BaseModel, extra="forbid"):
    """An object that the demo model does not write by itself."""

    count: int = pydantic.Field(ge=0, le=99)
    big: bool


QUESTION = "What is 23 + 45?"
# The demo model fills JSON that it was not trained on with spaces; the penalty ends them.
FEW_SPACES = {"temperature": 0, "max_tokens": 200, "frequency_penalty": 1}


def test_generate_and_stream_give_the_same(client):
    whole = client.generate("Once", max_tokens=30, temperature=0, logprobs=2)
    parts = list(client.stream("Once", max_tokens=30, temperature=0, logprobs=2))
    assert whole.text == "".join(part.text for part in parts) != ""
    assert whole.token_ids == [token for part in parts for token in part.token_ids]
    assert len(whole.logprobs) == whole.usage.completion_tokens == len(whole.token_ids)
    assert [top.token_id for top in whole.logprobs[0].top][0] == whole.token_ids[0]
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [whole.finish_reason]
    assert parts[-1].timings is not None
    assert client.generate(client.tokenize("Once").token_ids, max_tokens=30, temperature=0).text == whole.text


def test_chat(client):
    messages = [{"role": "user", "content": "What is 23 + 45?"}]
    answer = client.chat(messages, temperature=0)
    assert "68" in answer.text and answer.finish_reason == "stop"
    assert "".join(part.text for part in client.stream_chat("What is 23 + 45?", temperature=0)) == answer.text
    rendered = client.tokenize_chat(messages)
    assert "What is 23 + 45?" in rendered.text and answer.usage.prompt_tokens == len(rendered.token_ids)


def test_several_outputs(client):
    answer = client.generate("Once", max_tokens=8, n=3, seed=1, temperature=1)
    outputs = [answer, *answer.other_outputs]
    assert [output.index for output in outputs] == [0, 1, 2] and len({output.text for output in outputs}) > 1
    beams = client.generate("Once", max_tokens=8, num_beams=2, early_stopping=True)
    assert beams.cumulative_logprob is not None


def test_structures(client):
    assert client.chat("Is a fox an animal?", choice=["yes", "no"]).text in ("yes", "no")
    assert client.chat(QUESTION, **FEW_SPACES).text == "68"
    parsed = client.parse(Sum, QUESTION, **FEW_SPACES)
    assert isinstance(parsed, Sum)
    assert Sum.model_validate_json(client.chat(QUESTION, json_schema=Sum, **FEW_SPACES).text) == parsed
    with pytest.raises(IncompleteOutputError, match="finish_reason: length") as error:
        client.parse(Sum, QUESTION, max_tokens=3)
    assert error.value.text.startswith("{")
    with pytest.raises(TypeError, match="n: 2 is not 1"):
        client.parse(Sum, QUESTION, n=2)


def test_texts_and_tokens(client):
    tokens = client.tokenize("Once upon a time", add_special_tokens=False)
    assert client.detokenize(tokens.token_ids) == "Once upon a time"


def test_embeddings(client):
    answer = client.embed("Once upon a time", request_id="e")
    assert answer.request_id == "e" and answer.usage.completion_tokens == 0
    assert len(answer.embedding) == client.model_info().hidden_size
    assert math.sqrt(sum(x * x for x in answer.embedding)) == pytest.approx(1, abs=1e-5)
    tokens = client.tokenize("Once upon a time").token_ids
    assert client.embed(tokens).embedding == answer.embedding and answer.usage.prompt_tokens == len(tokens)
    mean = client.embed(tokens, pooling="mean", normalize=False).embedding
    assert mean != client.embed(tokens, pooling="mean").embedding != answer.embedding

    async def embed_async():
        async with AsyncClient(client.target) as other:
            return (await other.embed(tokens)).embedding

    assert asyncio.run(embed_async()) == answer.embedding
    with pytest.raises(InvalidArgumentError, match="prompt: 0 tokens; at least 1 is needed"):
        client.embed([])


def ended_sessions(client):
    """Once their files are on disk: an answer does not wait for that."""
    def listed():
        sessions = client.list_sessions()
        return None if any(session.running for session in sessions) else sessions

    return wait_until(listed, lambda: f"the sessions to be saved: {client.list_sessions()}")


def test_sessions(client):
    whole = client.generate("Once", session_id="s", max_tokens=20, temperature=0)
    (session,) = ended_sessions(client)
    assert (session.session_id, session.ended, session.output_tokens) == ("s", True, len(whole.token_ids))
    rest = [token for part in client.resume_session("s", received_tokens=5) for token in part.token_ids]
    assert rest == whole.token_ids[5:]
    with client.stream("Once", session_id="t", **ENDLESS) as stream:
        next(stream)
        saved = client.save_session("t")
        assert saved.session_id == "t" and saved.running and saved.output_tokens > 0
    ended_sessions(client)
    for name in ("s", "t"):
        client.delete_session(name)
    assert client.list_sessions() == []
    with pytest.raises(NotFoundError) as error:
        list(client.resume_session("s"))
    assert error.value.field == "session_id"


def test_information(client):
    info = client.model_info()
    assert info.model_type == "falcon_h1" and info.limits.max_sequence_tokens > 0 and info.cache_groups[0].kind
    assert "berth.v1.Inference" in client.server_info().services
    load = client.load()
    pools = load.cache.pools
    assert load.cache.arena_bytes == load.cache.free_bytes + load.cache.overhead_bytes + sum(
        pool.live_bytes + pool.shared_bytes + pool.cached_bytes + pool.free_bytes for pool in pools)
    assert [step.number for step in client.steps(last=2)] == [load.steps - 1, load.steps]


def test_abort(client):
    stream = client.stream("Once", request_id="r", **ENDLESS)
    next(stream)
    assert client.abort(["r", "unknown"]) == ["r"]
    assert [part.finish_reason for part in stream][-1] == "cancelled"


@pytest.mark.parametrize("options, field", [
    ({"top_p": 2}, "sampling.top_p"), ({"max_tokens": 0}, "stopping.max_tokens"), ({"n": 1000}, "n"),
    ({"stop": ["x" * 300]}, "stopping.stop"), ({"num_beams": 1}, "beam_search.num_beams"),
    ({"json_schema": {"type": "strin"}}, "structure.json_schema"), ({"session_id": ".x"}, "session_id"),
    ({"stop_token_ids": [-1]}, "stopping.stop_token_ids")])
def test_the_server_names_the_field(client, options, field):
    with pytest.raises(InvalidArgumentError) as error:
        client.generate("Once", **options)
    assert error.value.field is not None and error.value.field.startswith(field)
    assert error.value.message.startswith(error.value.field + ": ")


def test_a_broken_loop_ends_its_request(server, client):
    for _ in client.stream("Once", **ENDLESS):
        break
    server.wait_idle()
    load = client.load()
    with client.stream("Once", **ENDLESS) as stream:
        next(stream)
    server.wait_idle()
    assert client.load().generation_tokens - load.generation_tokens < ENDLESS["max_tokens"]


def test_asyncio(server):
    async def run():
        async with AsyncClient(server.address, timeout=300) as client:
            answers = await asyncio.gather(*(client.chat(f"What is 2{i} + 45?", temperature=0) for i in range(8)))
            assert [f"{65 + i}" in answers[i].text for i in range(8)] == [True] * 8
            assert isinstance(await client.parse(Sum, QUESTION, **FEW_SPACES), Sum)
            text = "".join([part.text async for part in client.stream("Once", max_tokens=20, temperature=0)])
            assert text == (await client.generate("Once", max_tokens=20, temperature=0)).text
            async for _ in client.stream("Once", **ENDLESS):
                break
            await asyncio.to_thread(server.wait_idle)
            with pytest.raises(InvalidArgumentError):
                await client.generate("Once", top_p=2)

    asyncio.run(run())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that knows the tokens "user-token" and "operator-token", and a tenant of few requests."""
    path = tmp_path_factory.mktemp("tenants") / "tenants.json"
    tokens = [{"name": role, "sha256": hashlib.sha256(f"{role}-token".encode()).hexdigest(), "roles": [role]}
              for role in ("user", "operator")]
    path.write_text(json.dumps({"tenants": [
        {"name": "acme", "tokens": tokens},
        {"name": "slow", "requests_per_second": 1, "burst_seconds": 1, "tokens": [
            {"name": "slow", "sha256": hashlib.sha256(b"slow-token").hexdigest()}]}]}))
    with BerthServer(DEMO, f"--tenants={path}") as server:
        yield server


def test_tokens(guarded):
    with Client(guarded.address, token="user-token") as client:
        assert client.generate("Once", max_tokens=2).usage.completion_tokens == 2
        with pytest.raises(PermissionDeniedError):
            client.steps()
    with Client(guarded.address, token="operator-token") as client:
        assert client.steps(last=1)
    for token in (None, "wrong"):
        with Client(guarded.address, token=token) as client, pytest.raises(UnauthenticatedError):
            client.generate("Once")


def test_a_rate_is_waited_for(guarded):
    with Client(guarded.address, token="slow-token", retries=0) as client, pytest.raises(ResourceExhaustedError) as error:
        for _ in range(100):
            client.generate("Once", max_tokens=1)
    assert error.value.reason == "TENANT_REQUEST_RATE" and 0 < error.value.retry_after <= 1
    assert error.value.details["tenant"] == "slow"
    with Client(guarded.address, token="slow-token", retries=100) as client:
        client.generate("Once", max_tokens=1)
