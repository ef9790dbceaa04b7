"""What the client sends and reads, against a fake server. The tests walk the descriptors that grpcio-tools makes of
proto/, so that a new field is tested at once."""

import asyncio
import json

import pytest
from berth_client import AsyncClient, Client, types
from berth_server import api
from fake_server import message_class

INPUTS = ("prompt", "chat", "token_ids")


def is_list(field):
    """A list, a map, or a message that holds nothing but a list."""
    return field.message_type is not None and len(field.message_type.fields) == 1 or repeated(field)


def repeated(field):
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def leaves(descriptor, path=()):
    """The paths of all fields that are not a message of several fields."""
    for field in descriptor.fields:
        if not path and field.name in INPUTS:
            continue
        if field.message_type is None or is_list(field):
            yield (*path, field)
        else:
            yield from leaves(field.message_type, (*path, field))


def sample(field):
    """A value that is not the default, as a program gives it and as the message holds it."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {7: -1.5}, {7: -1.5}
    if is_list(field):  # also a list itself
        inner = field if field.message_type is None else field.message_type.fields[0]
        value = ["a", "b"] if inner.cpp_type == inner.CPPTYPE_STRING else [3, 5]
        return value, value
    if field.enum_type is not None:
        value = field.enum_type.values[-1]
        return value.name.rsplit("_", 1)[-1].lower(), value.number
    if field.type == field.TYPE_BYTES:
        return b"\xe8", b"\xe8"
    return {field.CPPTYPE_BOOL: (True, True), field.CPPTYPE_STRING: ("text", "text"),
            field.CPPTYPE_FLOAT: (0.5, 0.5), field.CPPTYPE_DOUBLE: (0.5, 0.5)}.get(field.cpp_type, (3, 3))


def held(message, path):
    """The value at the end of the path; every message on the way must be there."""
    for field in path[:-1]:
        assert message.HasField(field.name)
        message = getattr(message, field.name)
    last = path[-1]
    value = getattr(message, last.name)
    if is_list(last):
        if repeated(last):
            return dict(value) if last.message_type is not None else list(value)
        return list(getattr(value, last.message_type.fields[0].name))
    assert message.HasField(last.name)
    return value


def fields_of_requests():
    return list(leaves(api().inference_pb2.GenerateRequest.DESCRIPTOR))


def test_the_walk_finds_the_fields():
    messages = {path[-1].containing_type.name for path in fields_of_requests()}
    assert {"GenerateRequest", "Sampling", "Stopping", "Structure", "BeamSearch"} <= messages
    assert len(fields_of_requests()) >= 40


@pytest.mark.parametrize("path", fields_of_requests(), ids=lambda path: ".".join(field.name for field in path))
def test_every_field_can_be_set(server, client, path):
    """By generate and by chat: the request then has this field, and beside its input nothing else."""
    given, expected = sample(path[-1])
    client.generate("x", **{path[-1].name: given})
    client.chat("x", **{path[-1].name: given})
    for _, request, *_ in server.requests:
        assert held(request, path) == expected
        request.ClearField(path[0].name)
        assert [field.name for field, _ in request.ListFields()] in (["prompt"], ["chat"])
    assert path[-1].name in types.GenerateOptions.__annotations__


def fields_of_embed():
    return [(field,) for field in api().inference_pb2.EmbedRequest.DESCRIPTOR.fields
            if field.name not in ("prompt", "token_ids")]


@pytest.mark.parametrize("path", fields_of_embed(), ids=lambda path: path[0].name)
def test_every_field_of_embed_can_be_set(server, client, path):
    given, expected = sample(path[-1])
    client.embed("x", **{path[-1].name: given})
    client.embed([1, 2], **{path[-1].name: given})
    for _, request, *_ in server.requests:
        assert held(request, path) == expected
        request.ClearField(path[0].name)
        assert [field.name for field, _ in request.ListFields()] in (["prompt"], ["token_ids"])
    assert path[-1].name in types.EmbedOptions.__annotations__


def test_every_field_of_a_chat_can_be_set(server, client):
    client.chat([{"role": "system", "content": "c", "extra_json": {"name": "n"}}, {"role": "user", "content": "d"}],
                add_generation_prompt=False, tools_json=[{"type": "function"}], template_variables_json={"v": 1})
    request = server.requests[0][1]
    names = {field.name for field in request.chat.DESCRIPTOR.fields}
    assert {field.name for field, _ in request.chat.ListFields()} == names
    assert {field.name for field, _ in request.chat.messages[0].ListFields()} == {
        field.name for field in request.chat.messages[0].DESCRIPTOR.fields}
    assert json.loads(request.chat.messages[0].extra_json) == {"name": "n"}
    assert json.loads(request.chat.tools_json) == [{"type": "function"}]
    assert [message.role for message in request.chat.messages] == ["system", "user"]


# The method of the client for each method of the API, and its arguments.
METHODS = {
    "Generate": [("stream", "x"), ("stream_chat", "x")], "Complete": [("generate", [1, 2]), ("chat", "x")],
    "Embed": [("embed", [1, 2])], "Tokenize": [("tokenize", "x"), ("tokenize_chat", "x")], "Detokenize": [("detokenize", [1, 2])],
    "Save": [("save_session", "s")], "Resume": [("resume_session", "s")], "Delete": [("delete_session", "s")],
    "List": [("list_sessions",)], "GetModelInfo": [("model_info",)], "GetServerInfo": [("server_info",)],
    "GetLoad": [("load",)], "GetSteps": [("steps",)], "Abort": [("abort", ["r"])],
    "Drain": [("drain",)], "FlushCache": [("flush_cache",)], "EraseTenant": [("erase_tenant",)],
}


def services():
    return [service for module in ("inference", "sessions", "control")
            for service in getattr(api(), f"{module}_pb2").DESCRIPTOR.services_by_name.values()]


def test_every_method_has_its_calls_in_both_clients(server):
    """Both send the same message. Each request's fields are its options, or the call's own arguments."""
    methods = {method.name: method for service in services() for method in service.methods}
    assert set(METHODS) == set(methods)

    async def collect(answer):
        return [message async for message in answer] if hasattr(answer, "__aiter__") else await answer

    async def call_async(name, arguments):
        async with AsyncClient(server.address) as client:
            return await collect(getattr(client, name)(*arguments))

    for method, calls in METHODS.items():
        for name, *arguments in calls:
            server.requests.clear()
            with Client(server.address) as client:
                answer = getattr(client, name)(*arguments)
                answer = list(answer) if hasattr(answer, "__next__") else answer
            assert asyncio.run(call_async(name, arguments)) == answer
            (first, request, *_), (second, again, *_) = server.requests
            assert first == second == method and request == again
            assert getattr(Client, name).__doc__ == getattr(AsyncClient, name).__doc__


def fill(message, depth=0):
    """Sets every field to a value that is not its default."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            if depth < 4:
                fill(value.add() if repeated(field) else value, depth + 1)
        elif repeated(field):
            value.extend(sample(field)[1])
        else:
            setattr(message, field.name, sample(field)[1])


def as_plain(message):
    """What the client's object must hold, by the descriptors."""
    plain = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if repeated(field):
            plain[field.name] = [as_plain(one) if field.message_type is not None else one for one in value]
        elif field.has_presence and not message.HasField(field.name):
            plain[field.name] = None
        elif field.message_type is not None:
            plain[field.name] = as_plain(value)
        elif field.enum_type is not None:
            word = field.enum_type.values_by_number[value].name.rsplit("_", 1)[-1].lower()
            plain[field.name] = None if word == "unspecified" else word
        else:
            plain[field.name] = value
    return plain


def as_dict(answer):
    if hasattr(answer, "__dataclass_fields__"):
        return {name: as_dict(getattr(answer, name)) for name in answer.__dataclass_fields__}
    return [as_dict(one) for one in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("method, full", [(method, full) for method in METHODS for full in (True, False)])
def test_every_field_of_an_answer_is_read(server, client, method, full):
    descriptor = next(m for service in services() for m in service.methods if m.name == method)
    message = message_class(descriptor.output_type)()
    if full:
        fill(message)
    server.answers = [message]
    name, *arguments = METHODS[method][0]
    answer = getattr(client, name)(*arguments)
    answer = list(answer)[0] if hasattr(answer, "__next__") else answer
    expected = as_plain(message)
    inner = {"Detokenize": "text", "Save": "session", "List": "sessions", "GetSteps": "steps", "Abort": "aborted"}
    if method == "Delete":
        assert answer is None
    elif method in inner:
        if full or method != "Save":
            assert as_dict(answer) == expected[inner[method]]
    else:
        assert as_dict(answer) == expected


@pytest.mark.parametrize("options, kind, message", [
    ({"max_token": 3}, TypeError, "max_token: there is no option of this name; did you mean max_tokens?"),
    ({"max_tokens": -1}, ValueError, "max_tokens: -1 is not an integer in [0, 4294967295]"),
    ({"max_tokens": "3"}, TypeError, "max_tokens: '3' is not an integer in [0, 4294967295]"),
    ({"max_tokens": True}, TypeError, "max_tokens: True is not an integer in [0, 4294967295]"),
    ({"temperature": "hot"}, TypeError, "temperature: 'hot' is not a number"),
    ({"ignore_eos": 1}, TypeError, "ignore_eos: 1 is not True or False"),
    ({"stop": "x"}, TypeError, "stop: 'x' is a text; give a list"),
    ({"stop": [1]}, TypeError, "stop[0]: 1 is not a text"),
    ({"stop": ["a", True]}, TypeError, "stop[1]: True is not a text"),
    ({"stop": 1}, TypeError, "stop: 1 is not a list, each a text"),
    ({"stop_token_ids": bytearray(b"x")}, TypeError, "stop_token_ids: bytearray(b'x') is a text; give a list"),
    ({"logit_bias": {"a": 1.0}}, TypeError,
     "logit_bias: {'a': 1.0} is not a map from an integer in [-2147483648, 2147483647] to a number"),
    ({"whitespace": "none"}, ValueError, "whitespace: 'none' is not one of flexible, compact, spaced"),
    ({"choice": ["a"], "regex": "b"}, TypeError, "regex: cannot be combined with choice"),
    ({"request_id": 5}, TypeError, "request_id: 5 is not a text"),
    ({"request_id": "\ud800"}, ValueError, "request_id: '\\ud800' is not a text"),
])
def test_wrong_options_are_refused_by_name(server, client, options, kind, message):
    with pytest.raises(kind) as error:
        client.generate("x", **options)
    assert str(error.value) == message
    assert server.requests == []


NEITHER = "is neither a text nor a list of token ids"


@pytest.mark.parametrize("prompt, kind, message", [
    (b"Once", TypeError, f"prompt: bytes {NEITHER}"),
    (bytearray(b"Once"), TypeError, f"prompt: bytearray {NEITHER}"),
    (memoryview(b"Once"), TypeError, f"prompt: memoryview {NEITHER}"),
    (None, TypeError, f"prompt: NoneType {NEITHER}"),
    (7, TypeError, f"prompt: int {NEITHER}"),
    ("\ud800", ValueError, "prompt: '\\ud800' is not a text"),
    ([1, 2**40], ValueError, "token_ids[1]: 1099511627776 is not an integer in [-2147483648, 2147483647]"),
    ([1, "2"], TypeError, "token_ids[1]: '2' is not an integer in [-2147483648, 2147483647]"),
    ([True], TypeError, "token_ids[0]: True is not an integer in [-2147483648, 2147483647]"),
])
@pytest.mark.parametrize("name", ["generate", "stream", "embed"])
def test_wrong_prompts_are_refused_by_name(server, client, name, prompt, kind, message):
    with pytest.raises(kind) as error:
        getattr(client, name)(prompt)
    assert str(error.value) == message
    assert server.requests == []


def test_an_empty_list_of_token_ids_is_sent_as_one(server, client):
    client.generate([])
    client.embed(iter([3, 4]))
    (_, generate, *_), (_, embed, *_) = server.requests
    assert generate.WhichOneof("input") == "token_ids" and list(embed.token_ids.ids) == [3, 4]


NO_MESSAGES = "is neither a text nor a list of messages"


@pytest.mark.parametrize("messages, message", [
    ([{"rol": "user", "content": "x"}], "rol: there is no option of this name; did you mean role?"),
    ([{"role": "user", "content": 1}], "content: 1 is not a text"),
    ({"role": "user", "content": "x"}, f"messages: dict {NO_MESSAGES}"),
    (b"x", f"messages: bytes {NO_MESSAGES}"),
    (None, f"messages: NoneType {NO_MESSAGES}"),
    ([{"role": "user", "content": "x"}, "y"], "messages[1]: str is no dict with role and content"),
    ([None], "messages[0]: NoneType is no dict with role and content"),
])
@pytest.mark.parametrize("name", ["chat", "stream_chat", "tokenize_chat"])
def test_wrong_messages_are_refused_by_name(server, client, name, messages, message):
    with pytest.raises(TypeError) as error:
        getattr(client, name)(messages)
    assert str(error.value) == message
    assert server.requests == []


def test_messages_are_no_option(client):
    with pytest.raises(TypeError, match="^messages: there is no option of this name"):
        client.chat("x", messages=[{"role": "user", "content": "x"}])


def test_an_option_that_is_none_stays_absent(server, client):
    client.generate("x", temperature=None, max_tokens=None)
    assert [field.name for field, _ in server.requests[0][1].ListFields()] == ["prompt"]


def test_models_and_objects_become_schemas(server, client):
    class Model:
        @classmethod
        def model_json_schema(cls):
            return {"type": "object"}

    client.generate("x", json_schema=Model)
    client.generate("x", json_schema={"type": "object"})
    client.generate("x", json_schema='{"type": "object"}', early_stopping=True)
    assert {request.structure.json_schema for _, request, *_ in server.requests} == {'{"type": "object"}'}
    early = server.requests[2][1].beam_search
    assert early.early_stopping == api().inference_pb2.EARLY_STOPPING_TRUE
