"""Requests for structured output, one by one: tags, grammars, whitespace, logprobs, warnings, refusals and dead ends."""

import concurrent.futures
import json
import math
import os
import re
import sys

import grpc
import jsonschema
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from berth_server import ENDLESS_TOKENS, ROOT, BerthServer, api, endless_server, generate_request, too_late  # noqa: E402
from structures import set_structure  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CHECKS = ["--poison_cache", "--check_integrity", "--log_level=warning"]
STORY, RECORD = "Tell me a story about a fox.", "Write a record about a river as JSON."


@pytest.fixture(scope="module")
def demo():
    with BerthServer(DEMO, *CHECKS) as server:
        yield server


def ask(server, structure, **fields):
    """The answer to a request with these fields of Structure. Sampled unless a temperature is given."""
    request = generate_request(**{"chat": RECORD, "max_tokens": 240, "temperature": 1.0, **fields})
    set_structure(request, structure)
    return server.inference.Complete(request, timeout=600)


def test_tagged_regions_follow_their_schemas(demo):
    """Stories have a name. Here it is a tagged region: a JSON object where the name would stand."""
    schema = {"type": "object", "properties": {"name": {"enum": ["Tom", "Ella"]}, "age": {"type": "integer", "minimum": 1,
              "maximum": 99}}, "required": ["name", "age"], "additionalProperties": False}
    tag = {"type": "structural_tag", "triggers": ["named"],
           "structures": [{"begin": "named ", "schema": schema, "end": "."}]}
    regions = 0
    for seed in range(20):
        request = generate_request(chat=STORY, max_tokens=80, temperature=1.0)
        request.sampling.seed = seed
        set_structure(request, {"structural_tag": json.dumps(tag), "whitespace": 1})
        answer = demo.inference.Complete(request, timeout=120)
        for region in answer.text.split("named")[1:]:
            closed = re.match(r" (\{[^}]*\})\.", region)
            if closed:
                jsonschema.validate(json.loads(closed[1]), schema)
                regions += 1
            else:
                assert answer.finish_reason == api().inference_pb2.FINISH_REASON_LENGTH, answer.text
    assert regions > 10


def test_it_may_begin_after_a_token(demo):
    token = demo.inference.Tokenize(api().inference_pb2.TokenizeRequest(text=","), timeout=60).token_ids[0]
    begun = 0
    for seed in range(10):
        request = generate_request(chat=STORY, max_tokens=100, temperature=1.0)
        request.sampling.seed = seed
        request.structure.regex = "[0-9]{4}"
        request.structure.begin_after_token = token
        answer = demo.inference.Complete(request, timeout=120)
        if answer.finish_reason == api().inference_pb2.FINISH_REASON_STOP:
            assert re.search(r"^[^,]*,[0-9]{4}$", answer.text, re.DOTALL), answer.text
            begun += 1
    assert begun > 3


@pytest.mark.parametrize("whitespace, separators", [(1, (",", ":")), (2, (", ", ": "))], ids=["compact", "spaced"])
def test_whitespace_is_as_asked_for(demo, whitespace, separators):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, "x"]}, "minItems": 2,
                                                     "maxItems": 4}, "b": {"type": "boolean"}},
              "required": ["a", "b"], "additionalProperties": False}
    answer = ask(demo, {"json_schema": json.dumps(schema), "whitespace": whitespace})
    assert answer.text == json.dumps(json.loads(answer.text), separators=separators)


def test_a_grammar_in_lark_is_followed(demo):
    grammar = 'start: sum\nsum: item (" + " item)*\nitem: /[0-9]{1,3}/ | "(" sum ")"\n'
    complete = 0
    for seed in range(20):
        request = generate_request(prompt="(1 + 2) + 3", max_tokens=100, temperature=1.0)
        request.sampling.seed = seed
        request.structure.lark = grammar
        answer = demo.inference.Complete(request, timeout=120)
        if answer.finish_reason == api().inference_pb2.FINISH_REASON_STOP:
            assert re.fullmatch(r"[0-9+() ]+", answer.text)
            numbers = re.sub(r"0+(?=[0-9])", "", answer.text)
            assert isinstance(eval(numbers, {"__builtins__": {}}), int)  # noqa: S307 (digits, +, brackets)
            complete += 1
    assert complete > 5


def test_logprobs_before_and_after_the_mask(demo):
    structure = {"choice": {"choices": ["maybe not", "maybe so"]}}
    after = ask(demo, structure, temperature=0.0, logprobs=5, logprobs_after_mask=True)
    places = list(after.logprobs)
    assert places[0].logprob == 0 and len(places[0].top) <= 2, "only one text can come first"
    for place in places:
        assert sum(math.exp(top.logprob) for top in place.top) < 1 + 1e-4
    before = ask(demo, structure, temperature=0.0, logprobs=5)
    assert before.text == after.text
    free = demo.inference.Complete(generate_request(chat=RECORD, max_tokens=1, logprobs=5), timeout=120)
    assert [(top.token_id, top.logprob) for top in before.logprobs[0].top] == \
        [(top.token_id, top.logprob) for top in free.logprobs[0].top]


def refusal(server, structure, **fields):
    with pytest.raises(grpc.RpcError) as error:
        ask(server, structure, **fields)
    return error.value.code(), error.value.details()


def test_what_cannot_be_compiled_is_refused_by_name_and_place(demo):
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for structure, words in [
            ({"json_schema": '{"type": "object", "properties": {"a": {"maxlength": 3}}}', "unknown_keywords": 1},
             ["structure.json_schema", "/properties/a/maxlength"]),
            ({"json_schema": '{"not": {"uniqueItems": true}}'}, ["structure.json_schema", "/not/uniqueItems"]),
            ({"json_schema": '{"a": 1,}'}, ["structure.json_schema", "line 1 column"]),
            ({"regex": "(a"}, ["structure.regex"]),
            ({"lark": 'start: "a\n'}, ["structure.lark"]),
            ({"structural_tag": '{"type": "structural_tag"}'}, ["structure.structural_tag"])]:
        code, details = refusal(demo, structure)
        assert code == invalid and all(word in details for word in words), details


def test_the_first_message_warns_of_what_constrains_nothing(demo):
    schema = {"json_schema": json.dumps({"enum": ["yes", "no"], "maxlength": 3})}
    answer = ask(demo, schema)
    assert answer.text in ('"yes"', '"no"')
    assert list(answer.warnings) == ["/maxlength: ignored: unknown keyword; maxLength may be meant"]
    request = generate_request(chat=STORY, max_tokens=20)
    set_structure(request, schema)
    messages = list(demo.inference.Generate(request, timeout=120))
    assert [len(message.warnings) for message in messages] == [1] + [0] * (len(messages) - 1)


def test_a_dead_end_ends_its_own_output_alone(demo):
    """Nothing but the end may come, but min_tokens bans it."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [pool.submit(ask, demo, {"regex": "[a-z]{30}"}) for _ in range(6)]
        request = generate_request(chat=STORY, max_tokens=50)
        request.stopping.min_tokens = 40
        request.structure.choice.choices.append("yes")
        with pytest.raises(grpc.RpcError) as error:
            demo.inference.Complete(request, timeout=120)
        assert error.value.details()
        assert all(re.fullmatch("[a-z]{30}", other.result().text) for other in others)
    demo.wait_idle()


def test_a_deadline_leaves_the_beginning_of_an_output():
    """The text until then begins what is asked for. It is not all: as no end may come, it continues. So do others."""
    with endless_server(DEMO, *CHECKS) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask, server, {"regex": "([a-z]{1,12} ){30}"}, max_tokens=400) for _ in range(3)]
        for seconds in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128):  # until one has text
            request = generate_request(chat=STORY, max_tokens=ENDLESS_TOKENS, temperature=1.0)
            request.stopping.min_tokens = ENDLESS_TOKENS
            set_structure(request, {"regex": "([a-z]{1,12} )*"})
            text = ""
            with pytest.raises(grpc.RpcError) as error:
                for message in server.inference.Generate(request, timeout=seconds):
                    text += message.text
            assert too_late(error.value), error.value
            assert re.fullmatch("([a-z]{1,12} )*[a-z]{0,12}", text), text
            if text:
                break
        assert text
        for other in others:
            assert re.fullmatch("([a-z]{1,12} ){30}", other.result().text)
        server.wait_idle()
