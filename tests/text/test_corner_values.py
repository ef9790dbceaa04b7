"""Values at the corners where keywords meet. What is accepted fits the schema."""

import json
import os
import sys

import jsonschema
import pytest
from text_oracle import Oracle

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
WALKS = 20


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        oracle.value(load=DEMO)
        yield oracle


def union(**properties):
    return {"oneOf": [{"discriminator": {"propertyName": "t"},
                       "anyOf": [{"properties": {"t": {"const": "a"}}}, {"properties": {"t": {"const": "b"}}}]},
                      {"type": "object", "properties": properties}]}


# Schemas, and texts that fit or do not fit. 0000-01-01 is a date that Berth does not write.
CASES = [
    ({"type": "integer", "minimum": 1, "multipleOf": 1, "not": {"const": 9223372036854775807}}, ["1", "7"], ["0", "-5"]),
    ({"type": "integer", "multipleOf": 3, "not": {"enum": [6, 300000000000000000]}}, ["3", "9", "-6"], ["6", "4"]),
    ({"type": "number", "multipleOf": 0.5, "maximum": 9, "not": {"enum": [2, 300000000000000000, -300000000000000000]}},
     ["2.5", "9", "-6"], ["2", "9.5", "0.25"]),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [{"a": 1}, {"a": 1, "b": 2}], "maxProperties": 1}},
     ["[]", '[{"a":1}]'], ['[{"a":1,"b":2}]', '[{"a":1},{"a":1,"b":2}]']),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [{}, {"a": 1}], "minProperties": 1}},
     ["[]", '[{"a":1}]'], ["[{}]", '[{"a":1},{}]']),
    (union(x={"type": "integer"}), ['{"t":"a","x":"y"}', '{"t":"c","x":1}'], ['{"x":1}', "{}", '{"t":"a","x":1}']),
    (union(t=False), ['{"t":"a"}'], ["{}", '{"x":1}', '{"t":1}']),
    ({"type": "object", "discriminator": {"propertyName": "t"}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
     ['{"t":1,"a":1}', '{"t":1,"b":1}'], ['{"t":1}', '{"t":1,"a":1,"b":1}']),
    ({"type": "object", "not": {"propertyNames": {"format": "date"}}}, ['{"x":0}'], ["{}", '{"0000-01-01":0}']),
    ({"type": "object", "if": {"propertyNames": {"format": "date"}}, "then": {"maxProperties": 0}, "else": {"required": ["y"]}},
     ["{}", '{"x":0,"y":1}'], ['{"0000-01-01":0}', '{"x":0}', '{"2020-01-01":0}']),
    ({"oneOf": [{"type": "object", "propertyNames": {"format": "date"}}, {"required": ["0000-01-01"], "type": "object"}]},
     ['{"2020-01-01":1}'], ['{"0000-01-01":0}']),
    ({"type": "object", "propertyNames": {"format": "date"}, "minProperties": 1}, ['{"2020-02-29":1}'], ["{}", '{"x":1}']),
    ({"type": "array", "items": {"type": "number"}, "uniqueItems": True}, ["[144115188075855872,144115188075855871]", "[1.5,1]"],
     ["[144115188075855872,144115188075855872.0]", "[1e20,100000000000000000000]", "[0,-0.0]"]),
    ({"allOf": [{"const": 144115188075855872}, {"const": 144115188075855872.0}]}, ["144115188075855872"], ["1"]),
    ({**D4, "type": "integer", "enum": [1.0, 2]}, ["2"], ["1.0", "3"]),
    ({**D4, "type": "array", "items": {"type": "integer", "enum": [1.0, 2]}}, ["[2]", "[]"], ["[1.0]"]),
    ({"type": "number", "minimum": 0}, ["0", "0.5", "1e-06", "2.5E+3"], ["-1", "-1e-06", "1e309"]),
    ({"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.25}, ["75", "75.0", "0.250", "100.00"],
     ["75.1", "75.01", "100.25", "-0.25"]),
    ({"type": "number", "minimum": 0, "maximum": 9999, "multipleOf": 1}, ["6000", "6000.0"], ["6000.5", "-1", "10000"]),
    ({"type": "number", "minimum": 0, "maximum": 9999, "multipleOf": 10}, ["6000", "6000.0"], ["6001", "10000.0"]),
    ({"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 3}, ["0", "9"], ["4", "12"]),
]


@pytest.mark.parametrize("schema, right, wrong", CASES, ids=[str(i) for i in range(len(CASES))])
def test_what_fits_is_accepted_and_nothing_else(oracle, schema, right, wrong):
    oracle.value(schema=schema, any_order=True)
    draft = jsonschema.Draft4Validator if "$schema" in schema else jsonschema.Draft202012Validator
    check = draft(schema, format_checker=draft.FORMAT_CHECKER)
    for text in right:
        assert check.is_valid(json.loads(text)) and oracle.value(accepts=text), text
    for text in wrong:
        assert not oracle.value(accepts=text), text
    for seed in range(WALKS):
        text = oracle.value(walk=seed, limit=300)
        assert text is None or check.is_valid(json.loads(text)), text


# "const" and "enum" look at no item.
@pytest.mark.parametrize("schema", [
    {"const": [1], "unevaluatedItems": False},
    {"prefixItems": [{"type": "integer"}], "enum": [[1, 2, 3]], "unevaluatedItems": {"type": "string"}}])
def test_unevaluated_items_beside_listed_values_are_refused(oracle, schema):
    assert "/unevaluatedItems: supported only beside" in oracle.ask(schema=schema)["error"]


def test_a_long_name_in_other_scripts_is_not_written(oracle):
    """A host's name may have 253 bytes when it is encoded, and these labels grow to twice their length and more."""
    label = "".join(chr(0x4E00 + 1700 * i) for i in range(12))
    oracle.value(schema={"type": "string", "format": "idn-hostname"})
    for count, fits in ((1, True), (3, True), (4, False), (10, False)):
        name = json.dumps(".".join([label] * count), ensure_ascii=False)
        assert oracle.value(accepts=name) == fits, count
    assert oracle.value(accepts=json.dumps(".".join(["a" * 20] * 12)))
