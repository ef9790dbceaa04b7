"""OpenAI's and Anthropic's Python clients, unmodified, through the SMG gateway to a server with the demo model."""

import json
import threading

import anthropic
import openai
import pytest

from gateway_server import MODEL, GatewayServer
from berth_server import ENDLESS_FLAGS, ENDLESS_LIMIT, ENDLESS_TOKENS, api, generate_request, join, wait_until

QUESTION = [{"role": "user", "content": "What is 23 + 45?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
# The last flag: what is found in the cache changes no bit of the logprobs.
LONG = [*ENDLESS_FLAGS, "--chunk_invariant_scans", "--log_level=debug"]
RECORD = [{"role": "user", "content": "Make a record: Lily the fox lives in the forest."}]
# The demo model fills JSON that it was not trained on with spaces.
FEW_SPACES = 1
# Past the end of its answer, the demo model generates nothing but end tokens. These have text here, since the gateway
# finds out that a client has left only when it sends it text.
ENDLESS = {"max_tokens": ENDLESS_TOKENS, "extra_body": {"ignore_eos": True, "skip_special_tokens": False}}
LONGEST_ANSWER = 500  # tokens; the demo model's stories are shorter
TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
                   "required": ["a"], "additionalProperties": False}}}


def client_of(server, **options):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300, **options)


@pytest.fixture(scope="module")
def server():
    with GatewayServer(*LONG) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(autouse=True)
def idle_afterwards(request):
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_idle()


def chat(client, messages=QUESTION, temperature=0, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=temperature, **options)


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL]


def test_an_embedding_is_that_of_berth_v1(server, client):
    answer = client.embeddings.create(model=MODEL, input="A fox ran.", encoding_format="float")
    (embedding,) = answer.data
    pb2 = api().inference_pb2
    expected = server.inference.Embed(pb2.EmbedRequest(prompt="A fox ran."), timeout=120)
    assert embedding.embedding == pytest.approx(list(expected.embedding), abs=1e-6)
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_a_chat_is_what_berth_v1_answers(server, client):
    answer = chat(client)
    expected = server.inference.Complete(generate_request(chat=QUESTION[0]["content"]), timeout=120)
    assert answer.choices[0].message.content == expected.text and "68" in expected.text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens


def test_a_stream_gives_the_same_text_and_usage(client):
    whole = chat(client, STORY)
    chunks = list(chat(client, STORY, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_completion_continues_its_prompt(server, client):
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, temperature=0)
    expected = server.inference.Complete(generate_request(prompt="Once upon", max_tokens=8), timeout=120)
    assert answer.choices[0].text == expected.text and answer.choices[0].finish_reason == "length"
    stream = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == expected.text


def test_sampling_without_parameters_follows_the_model(server, client):
    seeds = range(4)
    texts = [client.chat.completions.create(model=MODEL, messages=STORY, seed=seed).choices[0].message.content
             for seed in seeds]
    expected = []
    for seed in seeds:
        request = generate_request(chat=STORY[0]["content"], temperature=None)
        request.sampling.seed = seed
        expected.append(server.inference.Complete(request, timeout=120).text)
    assert texts == expected


def test_n_outputs_differ_by_seed(client):
    answer = chat(client, STORY, n=3, temperature=1, seed=5)
    texts = [choice.message.content for choice in answer.choices]
    alone = [chat(client, STORY, temperature=1, seed=5 + i).choices[0].message.content for i in range(3)]
    assert texts == alone and len(set(texts)) > 1
    assert answer.usage.completion_tokens > 3 * 5
    streamed = ["", "", ""]
    for chunk in chat(client, STORY, n=3, temperature=1, seed=5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_a_stop_string_ends_the_text_before_it(client):
    whole = chat(client, STORY).choices[0].message.content
    stopped = chat(client, STORY, stop=["fox"])
    assert stopped.choices[0].message.content == whole[:whole.index("fox")]
    assert stopped.choices[0].finish_reason == "stop"
    pieces = chat(client, STORY, stop=["fox"], stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)
    assert text == whole[:whole.index("fox")]


def test_logprobs_are_those_of_berth_v1(server, client):
    request = generate_request(chat=QUESTION[0]["content"], logprobs=2)
    expected = server.inference.Complete(request, timeout=120).logprobs
    answer = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    streamed = [entry for chunk in chat(client, logprobs=True, top_logprobs=2, stream=True)
                for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content]
    for entries in (answer, streamed):
        # The gateway leaves the end token out, unless it came in one chunk with a token before it.
        assert len(expected) - 1 <= len(entries) <= len(expected)
        for entry, own in zip(entries, expected):
            assert entry.logprob == pytest.approx(own.logprob, abs=1e-6)
            assert [top.logprob for top in entry.top_logprobs] == pytest.approx([top.logprob for top in own.top], abs=1e-6)
            assert len(entry.top_logprobs) == 2


def test_an_answer_follows_its_schema(client):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "legs": {"type": "integer", "maximum": 8}},
              "required": ["name", "legs"], "additionalProperties": False}
    answer = chat(client, RECORD, frequency_penalty=FEW_SPACES, response_format={
        "type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}})
    value = json.loads(answer.choices[0].message.content)
    assert set(value) == {"name", "legs"} and isinstance(value["legs"], int)
    # The model answers by itself with a story.
    answer = chat(client, STORY, response_format={"type": "json_object"}, max_tokens=400)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_the_gateways_constraints_hold(client):
    text = chat(client, extra_body={"regex": "[0-9]{3}-[0-9]{4}"}).choices[0].message.content
    assert len(text) == 8 and text[3] == "-"
    text = chat(client, extra_body={"ebnf": "root ::= \"sum \" [0-9]{2}"}).choices[0].message.content
    assert text[:4] == "sum " and len(text) == 6


@pytest.mark.parametrize("choice, messages", [("required", STORY),
                                              ({"type": "function", "function": {"name": "add"}}, QUESTION)],
                         ids=["required", "named"])
def test_a_tool_is_called(client, choice, messages):
    """The demo model knows no tools: the grammar of the call makes it call one."""
    answer = chat(client, messages, tools=[TOOL], tool_choice=choice, max_tokens=400, frequency_penalty=FEW_SPACES)
    (call,) = answer.choices[0].message.tool_calls[:1]
    assert call.function.name == "add"
    assert 0 <= json.loads(call.function.arguments)["a"] <= 99
    assert answer.choices[0].finish_reason in ("tool_calls", "stop")


def test_the_cache_is_counted(client):
    messages = [{"role": "user", "content": "Remember that the cache is shared. " * 8}]
    chat(client, messages, max_tokens=2)
    chat(client, messages, max_tokens=2)
    usage = chat(client, messages, max_tokens=2).usage
    assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2


def test_a_client_that_leaves_ends_its_request(server, client):
    before = server.load().generation_tokens
    stream = chat(client, STORY, stream=True, **ENDLESS)
    next(iter(stream))
    assert server.load().running == 1
    wait_until(lambda: server.load().generation_tokens > before + LONGEST_ANSWER, "the answer to be over")
    stream.close()
    server.wait_idle()
    assert server.load().generation_tokens < ENDLESS_TOKENS


def test_errors_have_openais_classes(client):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, extra_body={"regex": "("})
    assert "sampling_params.regex" in str(error.value)
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, extra_body={"ebnf": "root ::= other"})
    assert "there is no rule other" in str(error.value)
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, max_tokens=ENDLESS_LIMIT + 1)
    assert str(ENDLESS_LIMIT) in str(error.value)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="unknown", messages=QUESTION)


def test_a_full_queue_is_answered_at_once():
    with GatewayServer(*LONG, "--max_running=1", "--max_queue=1") as server:
        client = client_of(server)
        running = chat(client, STORY, stream=True, **ENDLESS)
        next(iter(running))
        waiting = threading.Thread(target=chat, args=(client, STORY), kwargs=ENDLESS, daemon=True)
        waiting.start()
        wait_until(lambda: server.load().queued == 1, "the second request to wait")
        with pytest.raises(openai.RateLimitError) as error:
            chat(client)
        assert "the queue is full: max_queue is 1" in str(error.value)
        server.control.Abort(api().control_pb2.AbortRequest(tenant="", all=True), timeout=120)
        join([waiting], "the second request to end")
        running.close()
        server.wait_idle()


GREEDY = {"temperature": 0}


def test_anthropics_client_works(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)
    message = client.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, extra_body=GREEDY)
    assert "68" in message.content[0].text and message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    with client.messages.stream(model=MODEL, max_tokens=50, messages=QUESTION, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
    short = client.messages.create(model=MODEL, max_tokens=3, messages=STORY, extra_body=GREEDY)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 3
