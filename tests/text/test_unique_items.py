"""Arrays whose items may not repeat, and names that may not. What is accepted is what jsonschema accepts. A text that is
begun can be ended: where there are just as many values as items, all of them come."""

import itertools
import json
import os
import sys

import jsonschema
import pytest
from text_oracle import Oracle

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
WALKS = 30
LIMIT = 3000  # tokens
BOOLEAN = {"type": "boolean"}
STRING = {"type": "string"}


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        oracle.value(load=DEMO)
        yield oracle


def closed(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


# Items of few values, and how many there are.
FEW = [
    ({"type": "integer", "minimum": -30, "maximum": 39}, 70),
    ({"type": "string", "pattern": "^[ab]{0,2}$"}, 7),
    ({"type": "string", "pattern": "^(a|ab|abc|\"|\\\\|é)$"}, 6),
    ({"enum": [f"v{i}" for i in range(70)]}, 70),
    ({"anyOf": [BOOLEAN, {"type": "null"}, {"type": "string", "pattern": "^x{0,3}$"}]}, 7),
    (closed(a=BOOLEAN, b=BOOLEAN), 9),
    (closed(["a"], a=BOOLEAN, b={"enum": ["x", "xy"]}, c={"type": "null"}), 12),
    (closed(["a"], a={"type": "array", "items": BOOLEAN, "maxItems": 2}), 7),
    (closed(["a"], a=closed(b=BOOLEAN, c={"const": 1})), 6),
    ({"type": "array", "prefixItems": [BOOLEAN, {"enum": ["a", "ab"]}], "items": False}, 7),
    ({"type": "array", "items": closed(a={"const": 1}), "maxItems": 2}, 7),
    ({"oneOf": [closed(a=BOOLEAN), {"type": "array", "items": BOOLEAN, "maxItems": 1}, {"const": "a"}]}, 7),
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("items, count", FEW, ids=[str(i) for i in range(len(FEW))])
def test_the_last_values_come_too(oracle, items, count, any_order):
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": count}
    oracle.value(schema=schema, any_order=any_order)
    check = jsonschema.Draft202012Validator(schema)
    for seed in range(WALKS):
        text = oracle.value(walk=seed, limit=LIMIT)
        assert text is not None
        value = json.loads(text)
        assert len(value) == count and check.is_valid(value), text
    too_many = oracle.ask(schema={**schema, "minItems": count + 1}).get("error")
    assert too_many is not None and "fewer than minItems" in too_many


TAGGED = {"oneOf": [{"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
                    {"properties": {"kind": {"const": "b"}, "n": STRING}, "required": ["kind", "n"]}]}
# Items of many values, and some of them.
MANY = [
    (STRING, ["", "a", "ab", "\"", "\\", "é", "\n"]),
    ({"type": "string", "maxLength": 2}, ["", "a", "ab", "b", "ba"]),
    ({"type": "string", "pattern": "^(a|ab.*)$"}, ["a", "ab", "abc"]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2024-02-28"]),
    ({"type": "integer"}, [0, 1, 12, -1, -12]),
    ({}, [None, True, 1, 1.5, "1", [], [1], [1.5], {}, {"a": 1}, {"a": 1, "b": [2]}, {"b": [2]}]),
    ({"type": "object"}, [{}, {"a": 1}, {"a": 1, "b": {"c": 1}}, {"a": 1, "b": {}}, {"b": 1, "a": 1}]),
    (closed(["name"], name=STRING, flag=BOOLEAN), [{"name": "a"}, {"name": "b"}, {"name": "a", "flag": True}]),
    (closed(name=STRING, flag=BOOLEAN), [{}, {"name": "a"}, {"flag": True}, {"name": "a", "flag": True}]),
    (closed(["tags"], tags={"type": "array", "items": STRING}), [{"tags": []}, {"tags": ["a"]}, {"tags": ["a", "b"]}]),
    (TAGGED, [{"kind": "a"}, {"kind": "b", "n": "x"}, {"kind": "b", "n": "y"}, {"kind": "a", "n": 1}]),
    ({"type": "array", "items": STRING, "uniqueItems": True}, [[], ["a"], ["b", "a"], ["a", "b"]]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, [[1], [1, 1], [2, 1], [12]]),
]
# Where such an array may stand.
AROUND = [
    lambda array: (array, lambda value: value),
    lambda array: (closed(["own"], own=array, other={"type": "array"}), lambda value: {"own": value, "other": [1, 1]}),
    lambda array: ({"type": "object", "additionalProperties": array}, lambda value: {"x": value, "y": value}),
    lambda array: ({"prefixItems": [True, array]}, lambda value: [[0, 0], value, [0, 0]]),
    lambda array: ({"anyOf": [STRING, array, closed(["a"], a=array)]}, lambda value: {"a": value}),
]


@pytest.mark.parametrize("items, values", MANY, ids=[str(i) for i in range(len(MANY))])
def test_what_repeats_an_item_is_refused(oracle, items, values):
    for around, any_order in itertools.product(AROUND, [False, True]):
        schema, within = around({"type": "array", "items": items, "uniqueItems": True})
        oracle.value(schema=schema, any_order=any_order)
        check = jsonschema.Draft202012Validator(schema)
        for length in (1, 2, 3):
            for some in itertools.islice(itertools.product(values, repeat=length), 150):
                value = within(list(some))
                # In the schema's order, members of closed objects have to come in it: those above do.
                assert oracle.value(accepts=json.dumps(value, ensure_ascii=False)) == check.is_valid(value), value


@pytest.mark.parametrize("items, values", MANY, ids=[str(i) for i in range(len(MANY))])
def test_random_items_do_not_repeat(oracle, items, values):
    del values
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 2, "maxItems": 4}
    oracle.value(schema=schema)
    check = jsonschema.Draft202012Validator(schema)
    for text in oracle.walks(WALKS, LIMIT):
        assert check.is_valid(json.loads(text)), text


@pytest.mark.parametrize("schema", [{"type": "object"}, {"additionalProperties": {"type": "object"}}, {}, {"items": {}},
                                    {"patternProperties": {"^x": True}, "additionalProperties": False}])
def test_a_name_comes_once(oracle, schema):
    oracle.value(schema=schema)
    for text in ('{"x": 1, "x": 1}', '{"x": {"xx": [1, {"x": 1, "x": 2}]}}', '{"xa": {}, "x": {}, "xa": {}}', '[{"x": 1, "x":'):
        assert not oracle.value(accepts=text), text
    check = jsonschema.Draft202012Validator(schema)
    for value in ({"x": {}, "xx": {"x": {}}}, {"xa": {"x": {}}, "x": {"x": {}, "xa": {}}}, [{"x": 1}, {"x": 1}], "x"):
        assert oracle.value(accepts=json.dumps(value)) == check.is_valid(value), value


STRINGS = {"type": "array", "items": STRING, "uniqueItems": True}
OBJECTS = {"type": "array", "items": {"type": "object"}, "uniqueItems": True}
# Objects of two kinds: in one of them, "a" may be another array.
EITHER = [
    {"anyOf": [{"properties": {"a": STRINGS}, "required": ["b"]}, {"required": ["c"]}]},
    {"anyOf": [{"properties": {"a": OBJECTS}, "required": ["b"]}, {"properties": {"a": {"maxItems": 3}}, "required": ["c"]}]},
    {"anyOf": [{"properties": {"a": {**STRINGS, "minItems": 2}}, "required": ["b"]},
               {"properties": {"a": {"items": STRING}}, "required": ["c"]}]},
    {"oneOf": [{"properties": {"a": STRINGS, "c": False}, "required": ["b"]}, {"required": ["c"]}]},
    {"if": {"required": ["b"]}, "then": {"properties": {"a": STRINGS}}},
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("schema", EITHER, ids=[str(i) for i in range(len(EITHER))])
def test_no_array_repeats_an_item_where_one_must_not(oracle, schema, any_order):
    schema = {"type": "object", **schema}
    oracle.value(schema=schema, any_order=any_order)
    check = jsonschema.Draft202012Validator(schema)
    items = ["x", "xy", 1, {}, {"x": 1}]
    for names in ([], ["b"], ["c"], ["b", "c"]):
        for count in range(4):
            for array in itertools.product(items, repeat=count):
                value = {"a": list(array), **dict.fromkeys(names, 1)}
                repeats = any(item in array[:i] for i, item in enumerate(array))
                fits = check.is_valid(value) and not repeats
                for text in (json.dumps(value), json.dumps(dict(reversed(value.items())))):
                    is_taken = oracle.value(accepts=text)
                    assert is_taken == fits if any_order else fits or not is_taken, text
    for text in oracle.walks(WALKS, LIMIT):
        assert check.is_valid(json.loads(text)), text


def test_where_items_cannot_be_watched_the_schema_is_refused(oracle):
    unique = {"type": "array", "items": STRING, "uniqueItems": True}
    for schema, message in [
            ({"anyOf": [unique, {"type": "array", "items": {"type": "integer"}}]}, "an array of other items"),
            ({**unique, "items": {"type": "number", "minimum": 0}}, "numbers with a fraction"),
            ({**unique, "items": {"type": "array", "contains": {"const": 1}}}, "contains"),
            ({**unique, "items": closed(a=STRING) | {"minProperties": 1}}, "properties are counted")]:
        assert message in oracle.ask(schema=schema)["error"]


def test_of_several_refusals_the_same_is_told_each_time(oracle):
    unique = {"type": "array", "items": {"type": "number", "minimum": 0}, "uniqueItems": True}
    schema = closed(**{name: {**unique, "maxItems": most} for most, name in enumerate("abcdefgh", 1)})
    assert len({oracle.ask(schema=schema)["error"] for _ in range(8)}) == 1


def test_what_is_nested_too_deeply_is_refused(oracle):
    """Values are compared level by level: a deep one once ended the process, and took long before."""
    oracle.value(schema={"type": "array", "uniqueItems": True})
    assert oracle.value(accepts="[" * 512 + "]" * 512)
    for depth in (513, 50_000):
        assert not oracle.value(accepts="[" * depth + "0" + "]" * depth), depth


def test_many_items_take_no_long_time(oracle):
    """The oracle's limit would catch a search of all items for each token."""
    oracle.value(schema={"type": "array", "uniqueItems": True, "minItems": 3000,
                         "items": {"type": "integer", "minimum": 0, "maximum": 9999}})
    text = oracle.value(walk=1, limit=40_000)
    items = json.loads(text)
    assert len(items) >= 3000 and len(set(items)) == len(items)


def test_equal_numbers_of_other_spellings_are_equal(oracle):
    oracle.value(schema={"type": "array", "uniqueItems": True})
    for items in ("[0.9452706955539223,0.94527069555392230]", "[1e-24,10e-25]", "[1,1.0]"):
        assert not oracle.value(accepts=items), items
    assert oracle.value(accepts="[0.9452706955539223,0.9452706955539224]")
