"""The gateway separates a model's reasoning from its answer. The demo model does not reason, so a regular expression of
the request makes it write the tags that models with reasoning write; the words between them are its own."""

import re

import openai
import pytest

from gateway_server import MODEL, GatewayServer

QUESTION = [{"role": "user", "content": "What is 23 + 45?"}]
WORDS = "[a-z ]{8,40}"
TAGGED = f"<think>{WORDS}</think>{WORDS}"
UNOPENED = f"{WORDS}</think>{WORDS}"  # of models whose template opens the tag


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(server, regex, model=MODEL, **options):
    return client_of(server).chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=200,
                                                     extra_body={"regex": regex}, **options)


def parts(message):
    """The reasoning and the answer of a message or a delta."""
    return getattr(message, "reasoning_content", None) or "", message.content or ""


def whole_and_streamed(server, regex, model=MODEL):
    whole = parts(ask(server, regex, model).choices[0].message)
    deltas = [parts(choice.delta) for chunk in ask(server, regex, model, stream=True) for choice in chunk.choices]
    streamed = tuple("".join(part) for part in zip(*deltas))
    # Reasoning comes before the answer.
    kinds = ["reasoning" if reasoning else "answer" for reasoning, answer in deltas if reasoning or answer]
    assert kinds == sorted(kinds, reverse=True)
    return whole, streamed


@pytest.fixture(scope="module")
def plain():
    """What the demo model writes to TAGGED, without a parser."""
    with GatewayServer("--chunk_invariant_scans") as server:
        reasoning, text = parts(ask(server, TAGGED).choices[0].message)
    assert reasoning == "" and re.fullmatch(TAGGED, text), text
    return re.fullmatch(f"<think>({WORDS})</think>({WORDS})", text).groups()


def test_a_parser_named_to_the_gateway_separates_reasoning(plain):
    with GatewayServer("--chunk_invariant_scans", gateway_flags=["--reasoning-parser=qwen3"]) as server:
        whole, streamed = whole_and_streamed(server, TAGGED)
        assert [part.strip() for part in whole] == [part.strip() for part in plain]
        assert streamed == whole


def test_the_models_name_chooses_the_parser(plain):
    with GatewayServer("--chunk_invariant_scans", "--model_name=qwen3-demo") as server:
        whole, streamed = whole_and_streamed(server, TAGGED, "qwen3-demo")
        assert [part.strip() for part in whole] == [part.strip() for part in plain]
        assert streamed == whole


def test_reasoning_that_the_template_opens_is_separated():
    with GatewayServer("--chunk_invariant_scans", gateway_flags=["--reasoning-parser=deepseek_r1"]) as server:
        whole, streamed = whole_and_streamed(server, UNOPENED)
        assert all(re.fullmatch(WORDS, part) or re.fullmatch("[a-z ]{4,40}", part.strip()) for part in whole), whole
        assert streamed == whole
