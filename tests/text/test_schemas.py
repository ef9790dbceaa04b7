"""JSON schemas that have to be written anew for a grammar, and those that Pydantic makes. Random texts of each grammar fit
the schema. Where there are few texts, all of them come."""

import itertools
import json
import os
import random
import re
import subprocess
import sys

import jsonschema
import pytest
from text_oracle import SECONDS, Oracle

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../clients"))
from berth_server import ROOT  # noqa: E402
from clients_python import CLIENTS_PYTHON  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pydantic_models.py")
WALKS = 40
MANY_WALKS = 400  # more than enough for each of a few texts to come
LIMIT = 500        # tokens


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        oracle.value(load=DEMO)
        yield oracle


def walk(oracle, schema, count=WALKS):
    """The complete texts among random ones."""
    oracle.value(schema=schema)
    return oracle.walks(count, LIMIT)


def ask_pydantic(python, command, given=None):
    done = subprocess.run([python, MODELS, command], input=json.dumps(given), capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("python", [sys.executable, CLIENTS_PYTHON], ids=["oldest", "newest"])
def test_each_model_of_pydantic_takes_all_of_its_texts(oracle, python):
    schemas = ask_pydantic(python, "schemas")
    assert len(schemas) >= 60
    texts = []
    for name, schema in schemas.items():
        complete = walk(oracle, schema)
        assert len(complete) >= WALKS // 2, name
        texts += [(name, text) for text in complete]
    assert ask_pydantic(python, "validate", texts) == []


TAGGED = {
    "$defs": {
        "A": {"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "boolean"}}, "required": ["t"],
              "additionalProperties": False},
        "B": {"type": "object", "properties": {"t": {"enum": ["b", "c"]}}, "required": ["t"],
              "additionalProperties": False},
        "T": {"allOf": [{"$ref": "#/$defs/B"}]},
    },
    "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/T"}, {"type": "null"}],
}
P = {"p": {"const": 1}, "q": {"const": 2}, "r": {"const": 3}}


def counted(optional, low=None, high=None, required=(), **more):
    schema = {"type": "object", "properties": {name: P[name] for name in optional}, "required": list(required), **more}
    schema.update({"minProperties": low} if low is not None else {})
    schema.update({"maxProperties": high} if high is not None else {})
    return schema


CLOSED = {"additionalProperties": False}
# Schemas, and how many values they have.
FEW = [
    (TAGGED, 6),
    ({"oneOf": [{"const": 1}, {"enum": ["1", None]}, {"type": "boolean"}]}, 5),
    ({"type": "integer", "oneOf": [{"enum": [1, 2]}, {"enum": [3, "4"]}]}, 3),
    ({"oneOf": [{"type": "array", "maxItems": 0}, {"anyOf": [{"const": "a"}, {"const": 2}]}]}, 3),
    # An option without the property, which the other option needs.
    ({"oneOf": [counted("pq", required="p", **CLOSED), counted("q", **CLOSED)]}, 4),
    ({"type": "array", "items": {"enum": [1, 1.0, 2]}, "uniqueItems": True}, 5),
    ({"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True}, 16),
    ({"type": "array", "items": {"$ref": "#/$defs/X"}, "uniqueItems": True, "minItems": 2, "maxItems": 3,
      "$defs": {"X": {"anyOf": [{"const": "x"}, {"enum": ["y", [1]]}]}}}, 12),
    ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "maxItems": 1}, 3),
    ({"type": "object", "propertyNames": {"enum": ["a", "b", 3]}, "additionalProperties": {"type": "null"}}, 4),
    ({"type": "object", "propertyNames": {"enum": ["p", "b"]}, "additionalProperties": {"type": "null"},
      "properties": {"p": {"const": 7}, "q": {"const": 8}}}, 4),
    ({"type": "object", "propertyNames": {"enum": ["p", "q", "r"]}, "additionalProperties": {"const": 0},
      "minProperties": 2}, 4),
    (counted("pqr", 1, **CLOSED), 7),
    (counted("pqr", 2, **CLOSED), 4),
    (counted("pqr", 3, **CLOSED), 1),
    (counted("pqr", 0, 2, **CLOSED), 7),
    (counted("pqr", 1, 2, **CLOSED), 6),
    (counted("pqr", 2, 2, **CLOSED), 3),
    (counted("pqr", 2, 2, "p", **CLOSED), 2),
    (counted("pqr", 2, 3, "q", **CLOSED), 3),
    (counted("pqr", None, 0, **CLOSED), 1),
]


def canonical(text):
    return json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.parametrize(("schema", "count"), FEW, ids=[str(i) for i in range(len(FEW))])
def test_all_values_of_a_schema_come_and_no_others(oracle, schema, count):
    texts = walk(oracle, schema, MANY_WALKS)
    for text in texts:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert len(set(map(canonical, texts))) == count


# Schemas with endless values.
MANY = [
    counted("pq", 1), counted("pq", 2), counted("pq", 3), counted("pqr", 2, 2), counted("pqr", 1, 3, "p"), counted("pq", None, 1),
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,2}$"}, "additionalProperties": {"type": "boolean"}},
    {"oneOf": [{"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"]},
               {"type": "object", "properties": {"t": {"type": "string"}}}]},
    {"type": "object", "required": ["t"], "oneOf": [{"type": "object", "properties": {"t": {"const": 1}}},
                                                    {"type": "object", "properties": {"t": {"const": 2}}}]},
]


@pytest.mark.parametrize("schema", MANY, ids=[str(i) for i in range(len(MANY))])
def test_values_fit_the_schema(oracle, schema):
    for text in walk(oracle, schema, 10 * WALKS):
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


D4, D6, D7 = ({"$schema": f"http://json-schema.org/draft-0{n}/schema#"} for n in (4, 6, 7))
D2019, D2020 = ({"$schema": f"https://json-schema.org/draft/{name}/schema"} for name in ("2019-09", "2020-12"))
AB = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}
VALUES = [None, True, 0, 1, 2, 5, 6, -1.5, "", "a", "ab", "abc", "b", [], [1], [1, 1], ["a"], ["a", 1], [1, "a"], ["a", "a"],
          [1, 1, 1], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": "x"}, {"a": "x", "b": 2}, {"a": {"a": 1}}, {"c": 1}]
# Each takes just those of VALUES that fit it in its own draft.
DRAFTS = [
    {**D4, "type": "integer", "maximum": 5, "exclusiveMaximum": True}, {**D4, "type": "integer", "minimum": 1, "exclusiveMinimum": False},
    {**D4, "type": "number", "exclusiveMinimum": True}, {**D4, "const": 1, "type": "string"},
    {**D6, "const": 1}, {**D7, "exclusiveMaximum": 5, "type": "number"},
    {**D7, "items": [{"type": "string"}], "additionalItems": False}, {**D7, "items": [{"type": "string"}, {"type": "integer"}]},
    {**D4, "items": [{"type": "string"}], "additionalItems": {"type": "string"}}, {**D7, "additionalItems": False},
    {**D7, "items": {"type": "integer"}, "additionalItems": False}, {**D4, "items": [], "additionalItems": {"type": "integer"}},
    {**D2019, "items": [{"type": "string"}], "additionalItems": False}, {**D2020, "prefixItems": [{"const": 1}], "items": False},
    {**D7, "prefixItems": [{"const": 1}], "type": "array"}, {**D2020, "additionalItems": False, "type": "array"},
    {**D4, **AB, "dependencies": {"a": ["b"]}}, {**D7, **AB, "dependencies": {"a": {"properties": {"b": False}}}},
    {**D2019, **AB, "dependentRequired": {"a": ["b"]}}, {**D2019, **AB, "dependentSchemas": {"b": {"required": ["a"]}}},
    {**D7, **AB, "dependentRequired": {"a": ["b"]}}, {**D4, "propertyNames": {"pattern": "^a"}, **AB},
    {**D7, "properties": {"a": {"$ref": "#/definitions/x", "minimum": 5}}, "type": "object", "definitions": {"x": {"type": "integer"}}},
    {**D2019, "properties": {"a": {"$ref": "#/$defs/x", "minimum": 5}}, "type": "object", "$defs": {"x": {"type": "integer"}}},
    {**D7, **AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, {**D6, **AB, "if": {"required": ["a"]}, "then": False},
    {**D7, "if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": ["string", "null"]}, "type": ["integer", "string", "null"]},
    {**D7, "$id": "http://a.org/s.json", "type": "object", "properties": {"a": {"$ref": "t.json#/definitions/n"}},
     "definitions": {"t": {"$id": "t.json", "definitions": {"n": {"$ref": "#/definitions/m"}, "m": {"type": "string"}}}}},
    {**D4, "id": "http://a.org/s.json", "type": "object", "properties": {"a": {"$ref": "#n"}},
     "definitions": {"t": {"id": "#n", "type": "integer"}}},
    {**D2019, "type": "object", "properties": {"a": {"$ref": "#n"}}, "$defs": {"t": {"$anchor": "n", "type": "integer"}}},
    {**D2019, "type": ["object", "integer"], "additionalProperties": {"$recursiveRef": "#"}},
    {**D2020, "type": ["object", "integer"], "$dynamicAnchor": "n", "additionalProperties": {"$dynamicRef": "#n"}},
    {**D2020, "type": "object", "properties": {"a": {"$ref": "urn:x:y"}}, "$defs": {"t": {"$id": "urn:x:y", "type": "string"}}},
    {**D2020, "properties": {"a": {"$ref": "/t"}}, "type": "object", "$id": "https://b.org/s/u",
     "$defs": {"t": {"$id": "https://b.org/t", **D7, "allOf": [{"$ref": "#/definitions/i", "type": "null"}],
                     "definitions": {"i": {"type": "integer"}}}}},
    {**D2020, "not": {"type": ["number", "object"]}}, {**D2020, "not": {"enum": ["a", "ab", 1, None, True]}},
    {**D2020, "type": "string", "not": {"const": "ab"}}, {**D2020, "type": "string", "not": {"enum": ["", "a"]}},
    {**D2020, "type": "string", "not": {"minLength": 2}}, {**D2020, "type": "number", "not": {"minimum": 2}},
    {**D2020, "type": "integer", "not": {"enum": [1, 2, 3]}}, {**D2020, "not": {"required": ["a"]}, **AB},
    {**D2020, **AB, "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, {**D2020, **AB, "not": {"required": ["a", "b"]}},
    {**D2020, **AB, "not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
    {**D2020, "type": "array", "not": {"prefixItems": [{"type": "string"}]}}, {**D2020, "type": "array", "not": {"contains": {"const": "a"}}},
    {**D2020, **AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {**D2020, "oneOf": [{"type": "integer"}, {"minimum": 2, "type": "integer"}]},
    {**D2020, "not": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": ["array", "object", "number"]}}},
    {**D2020, "type": "string", "not": {"pattern": "^a"}}, {**D2020, "type": "string", "not": {"pattern": "b$|^$"}},
    {**D2020, "type": "string", "not": {"pattern": "^[ab]{1,2}$"}},
    {**D2020, "type": "object", "propertyNames": {"pattern": "^[b-z]$"}, "properties": {"a": {}, "b": {"type": "integer"}}},
    {**D2020, "type": "object", "propertyNames": {"minLength": 1, "maxLength": 1}, "properties": {"a": {}, "bb": {}}},
    {**D2020, "not": {"not": {"type": "string"}}}, {**D2020, "not": {"oneOf": [{"minLength": 2}, {"maxLength": 0}]}, "type": "string"},
    {**D2020, "not": {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "null"}}},
    {**D2020, "type": ["object", "null"], "properties": {"a": {}}, "not": {"not": {"required": ["b"], "properties": {"b": {}}}},
     "unevaluatedProperties": False},
]


@pytest.mark.parametrize("schema", DRAFTS, ids=[str(i) for i in range(len(DRAFTS))])
def test_each_draft_has_its_own_keywords(oracle, schema):
    oracle.value(schema=schema)
    check = jsonschema.validators.validator_for(schema)(schema)
    for value in VALUES:
        assert oracle.value(accepts=json.dumps(value)) == check.is_valid(value), value


# Numbers around bounds, and those that are written with more digits or with a sign.
NUMBERS = ["0", "0.0", "0.05", "0.25", "0.250", "0.3", "0.5", "0.49", "0.51", "1", "1.0", "1.5", "2", "9", "9.99", "10", "12", "12.5",
           "12.50", "12.49", "12.51", "99", "100", "105", "999", "1000", "1234", "1234.5", "12345", "-0.05", "-0.5", "-0.51", "-1",
           "-9", "-10", "-12.5", "-12.51", "-12.75", "-99", "-100", "-100.5", "-1234.5", "-1235"]
BOUNDS = [None, -1234.5, -100, -12.5, -0.5, 0, 0.25, 1, 9.99, 12.5, 100, 1000]


@pytest.mark.parametrize("kind", ["integer", "number", "fraction"])
def test_numbers_within_bounds_are_taken(oracle, kind):
    for low in BOUNDS:
        for high in BOUNDS:
            for keys in (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
                bounds = {key: value for key, value in zip(keys, (low, high)) if value is not None}
                schema = {"type": "integer" if kind == "integer" else "number", **bounds}
                schema.update({"not": {"type": "integer"}} if kind == "fraction" else {})
                check = jsonschema.Draft202012Validator(schema)
                if "error" in oracle.ask(schema=schema):
                    assert not any(check.is_valid(json.loads(text)) for text in NUMBERS), schema
                    continue
                for text in NUMBERS:
                    is_written = kind != "integer" or "." not in text
                    fits = check.is_valid(json.loads(text)) and is_written
                    assert oracle.value(accepts=text) == fits, (schema, text)


MULTIPLES = [
    {"type": "integer", "not": {"multipleOf": 2}}, {"type": "number", "not": {"multipleOf": 1}}, {"not": {"multipleOf": 3}},
    {"type": "number", "not": {"multipleOf": 0.5}}, {"type": "integer", "multipleOf": 2, "not": {"multipleOf": 3}},
    {"type": "number", "multipleOf": 0.25, "not": {"multipleOf": 0.5}}, {"type": "number", "multipleOf": 0.5, "not": {"type": "integer"}},
    {"type": "integer", "not": {"anyOf": [{"multipleOf": 2}, {"multipleOf": 5}, {"multipleOf": 7}]}},
    {"type": "number", "oneOf": [{"multipleOf": 2}, {"multipleOf": 5}]}, {"type": "integer", "oneOf": [{"multipleOf": 3}, {"minimum": 10}]},
    {"if": {"multipleOf": 3}, "then": {"maximum": 12}, "else": {"minimum": -1}, "type": "integer"},
    {"type": "number", "not": {"multipleOf": 4}, "exclusiveMinimum": -100.5, "maximum": 105},
    {"type": "integer", "not": {"anyOf": [{"multipleOf": 3}, {"enum": [1, 10, 100]}]}}, {"type": "integer", "not": {"multipleOf": 1.5}},
    {"type": "integer", "not": {"multipleOf": 243}}, {"type": "integer", "multipleOf": 21, "not": {"anyOf": [{"multipleOf": 8}, {"multipleOf": 5}]}},
    {"type": "integer", "multipleOf": 7, "minimum": 1, "not": {"multipleOf": 242}}, {"type": "number", "not": {"type": "integer", "multipleOf": 2}},
    {"type": "integer", "multipleOf": 13, "not": {"anyOf": [{"multipleOf": of} for of in (2, 3, 5, 7, 11)]}, "minimum": -50, "maximum": 400},
    {"type": "integer", "multipleOf": 1.5, "not": {"multipleOf": 99991}, "minimum": -20, "maximum": 30},
]


@pytest.mark.parametrize("schema", MULTIPLES, ids=[str(i) for i in range(len(MULTIPLES))])
def test_numbers_are_multiples_or_not(oracle, schema):
    check = jsonschema.Draft202012Validator(schema)
    for text in walk(oracle, schema):
        check.validate(json.loads(text))
    for text in NUMBERS + [str(number) for number in range(-50, 130)] + ["486", "-243", "123456789", "0.75", "-0.5", "100.25", "7.50"]:
        is_written = "integer" not in str(schema.get("type")) or "." not in text
        assert oracle.value(accepts=text) == (check.is_valid(json.loads(text)) and is_written), text


XYZ = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": True}}
# Objects whose properties come in any order.
ANY_ORDER = [
    XYZ, {**XYZ, **CLOSED}, {**XYZ, "required": ["b"]}, {**XYZ, **CLOSED, "required": ["a", "c"]},
    {**XYZ, **CLOSED, "minProperties": 2}, {**XYZ, **CLOSED, "maxProperties": 1}, {**XYZ, "maxProperties": 2, "required": ["c"]},
    {**XYZ, **CLOSED, "maxProperties": 2, "required": ["a", "b"]}, {**XYZ, "maxProperties": 2, "required": ["c", "a"]},
    {**XYZ, "additionalProperties": {"type": "boolean"}},
    {**XYZ, **CLOSED, "patternProperties": {"^d": {"type": "integer"}}},
    {**XYZ, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {**XYZ, "not": {"required": ["a", "b"]}},
    {**XYZ, "dependentRequired": {"a": ["c"]}}, {**XYZ, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {**XYZ, "anyOf": [{"properties": {"d": True}, "required": ["d"]}, {"required": ["a"]}], "unevaluatedProperties": False},
    {**XYZ, "not": {"additionalProperties": {"type": "boolean"}}},
    {"allOf": [{"not": {"additionalProperties": {"type": "boolean"}}}, {"not": {"additionalProperties": {"type": "integer"}}}], **XYZ},
    {"allOf": [{"not": {"patternProperties": {"^d": {"type": "boolean"}}}},
               {"not": {"patternProperties": {"d$": {"maximum": 1}}}}], **XYZ},
]
MEMBERS = {"a": 1, "b": None, "c": "x", "d": True, "dd": 2}


@pytest.mark.parametrize("schema", ANY_ORDER, ids=[str(i) for i in range(len(ANY_ORDER))])
def test_properties_come_in_any_order(oracle, schema):
    oracle.value(schema=schema, any_order=True)
    check = jsonschema.Draft202012Validator(schema)
    for count in range(5):
        for names in itertools.permutations(MEMBERS, count):
            value = {name: MEMBERS[name] for name in names}
            assert oracle.value(accepts=json.dumps(value)) == check.is_valid(value), (schema, value)
    assert not oracle.value(accepts='{"a": 1, "a": 1}')


@pytest.mark.parametrize("others", ["^x-", "^p9", "^p[0-9]", "^p1[a-z]*$|^q"])
def test_over_64_properties_come_in_any_order(oracle, others):
    names = [f"p{i}" for i in range(100)]
    schema = {"type": "object", "properties": dict.fromkeys(names, {"type": "integer"}), "required": names[90:],
              "patternProperties": {others: {"type": "integer"}}, "additionalProperties": False}
    oracle.value(schema=schema, any_order=True)
    check = jsonschema.Draft202012Validator(schema)
    shuffle = random.Random(0)
    for missing in [[], names[:80], names[89:90], names[99:]]:
        for _ in range(5):
            more = [name for name in ["x-a", "p999", "qq"] if re.search(others, name)]
            own = [name for name in names + more if name not in missing]
            shuffle.shuffle(own)
            value = dict.fromkeys(own, 1)
            assert oracle.value(accepts=json.dumps(value)) == check.is_valid(value), missing
    twice = json.dumps(dict.fromkeys(names, 1))[:-1]
    assert not oracle.value(accepts=twice + ', "p7": 1}')
    assert not oracle.value(accepts=twice + ', "x-a": 1, "x-a": 1}')
    # Where a longer name fits as well, random texts hardly ever have one that is required, and do not end.
    for text in oracle.walks(WALKS // 2, 3000) if others not in ("^p9", "^p[0-9]") else []:
        assert check.is_valid(json.loads(text)), text


NULL, INTEGER = {"type": "null"}, {"type": "integer"}
TWO_NEEDS = {"allOf": [{"not": {"patternProperties": {"^x": INTEGER}}}, {"not": {"patternProperties": {"1$": NULL}}}]}
# Objects whose unlisted properties are counted or needed.
TALLIES = [
    {"minProperties": 2}, {"minProperties": 3, "properties": {"a": NULL}}, {"maxProperties": 2},
    {"minProperties": 2, "maxProperties": 3, "required": ["1"]}, TWO_NEEDS, {**TWO_NEEDS, "maxProperties": 2},
    {"minProperties": 2, "maxProperties": 3, "properties": {"1": NULL, "2": NULL, "a": INTEGER}, "required": ["2"]},
    {**TWO_NEEDS, "minProperties": 3}, {**TWO_NEEDS, "properties": {"a": NULL, "1": INTEGER}, "maxProperties": 2},
    {"minProperties": 2, "maxProperties": 2, "properties": {"a": NULL}, "required": ["a"], "additionalProperties": False,
     "patternProperties": {"^x": INTEGER}},
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("schema", TALLIES, ids=[str(i) for i in range(len(TALLIES))])
def test_unlisted_properties_are_counted(oracle, schema, any_order):
    schema = {"type": "object", **schema}
    oracle.value(schema=schema, any_order=any_order)
    check = jsonschema.Draft202012Validator(schema)
    listed = [*schema.get("properties", {}), *schema.get("required", [])]
    for count in range(4):
        for names in itertools.permutations(["1", "2", "a", "x1", "xx"], count):
            order = [listed.index(name) if name in listed else len(listed) for name in names]
            if not any_order and order != sorted(order):
                continue
            for values in itertools.product([None, 1], repeat=count):
                value = dict(zip(names, values))
                assert oracle.value(accepts=json.dumps(value)) == check.is_valid(value), value
    # Random names hardly ever meet both of two needs, so that these texts do not end.
    for text in oracle.walks(WALKS // 2, 300) if "allOf" not in schema else []:
        assert check.is_valid(json.loads(text)), text


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("names", [{}, {"propertyNames": {"pattern": "^..?$"}}])
def test_one_property_meets_all_needs(oracle, names, any_order):
    schema = {"type": "object", **TWO_NEEDS, **names, "maxProperties": 1}
    oracle.value(schema=schema, any_order=any_order)
    values = [{}, *({name: value} for name in ["x1", "x", "1", "xx1", "q"] for value in [None, 1, "a"]), {"x1": "a", "q": 1}]
    for value in values:
        fits = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert oracle.value(accepts=json.dumps(value)) == fits, value


DIGITS = {"type": "object", "patternProperties": {"^[0-3]$": INTEGER}, "additionalProperties": False}
# Objects that need or count properties of a few names.
FEW_NAMES = [
    {**DIGITS, "minProperties": 3}, {**DIGITS, "minProperties": 2, "maxProperties": 2}, {**DIGITS, "minProperties": 4, "required": ["1"]},
    {**DIGITS, "not": {"anyOf": [{"patternProperties": {"^[01]$": False}}, {"patternProperties": {"^[12]$": False}}]}, "maxProperties": 2},
    {**DIGITS, "allOf": [{"not": {"patternProperties": {"^[01]$": {"minimum": 1}}}}, {"not": {"patternProperties": {"^[13]$": {"maximum": 0}}}}]},
    {**DIGITS, "dependentRequired": {"1": ["2"]}, "not": {"required": ["2", "3"]}, "minProperties": 3},
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("schema", FEW_NAMES, ids=[str(i) for i in range(len(FEW_NAMES))])
def test_few_names_are_listed(oracle, schema, any_order):
    oracle.value(schema=schema, any_order=any_order)
    check = jsonschema.Draft202012Validator(schema)
    found = set()
    for names in itertools.chain.from_iterable(itertools.permutations("0123", count) for count in range(5)):
        for values in itertools.product([0, 1], repeat=len(names)):
            value = dict(zip(names, values))
            is_taken = oracle.value(accepts=json.dumps(value))
            assert is_taken == check.is_valid(value) if any_order else check.is_valid(value) or not is_taken, value
            found |= {json.dumps(value, sort_keys=True)} if is_taken else set()
    # In some order, each comes.
    for values in itertools.product([None, 0, 1], repeat=4):
        value = {name: own for name, own in zip("0123", values) if own is not None}
        assert (json.dumps(value, sort_keys=True) in found) == check.is_valid(value), value
    for text in oracle.walks(WALKS // 2, 300):
        assert check.is_valid(json.loads(text)), text


ITEMS = [None, 0, 1, 2, "a", "b", [], [1]]
# Arrays, by all items of up to three.
ARRAYS = [
    {"contains": {"const": 1}}, {"contains": {"type": "integer"}, "minContains": 2}, {"contains": {"type": "integer"}, "maxContains": 1},
    {"contains": {"type": "string"}, "minContains": 1, "maxContains": 2, "maxItems": 2}, {"contains": {"const": "a"}, "minItems": 3},
    {"contains": {"const": 1}, "minContains": 0}, {"contains": {"const": 1}, "prefixItems": [{"type": "string"}, True]},
    {"not": {"contains": {"const": 1}}}, {"not": {"items": {"type": "integer"}}}, {"not": {"minItems": 2}}, {"not": {"maxItems": 1}},
    {"not": {"prefixItems": [{"const": 1}], "items": {"const": 2}}}, {"not": {"contains": {"const": 1}, "minContains": 2}},
    {"items": {"enum": [1, 2, "a", [1]]}, "uniqueItems": True}, {"items": {"enum": [1, 1.0, "a"]}, "uniqueItems": True, "minItems": 2},
    {"items": {"type": ["boolean", "null"]}, "uniqueItems": True, "maxItems": 2}, {"prefixItems": [True, True], "unevaluatedItems": False},
    {"items": {"type": "integer", "minimum": 0, "maximum": 2}, "uniqueItems": True}, {"not": {"enum": [[1], [1, "a"]]}},
    {"oneOf": [{"minItems": 2}, {"items": {"type": "integer"}}]}, {"if": {"items": {"type": "null"}}, "then": {"maxItems": 1}},
    {"allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]},
    {"allOf": [{"contains": {"type": "integer"}, "minContains": 2}, {"contains": {"enum": [1, "a"]}, "maxContains": 1}]},
    {"contains": {"type": "string"}, "maxContains": 1, "allOf": [{"contains": {"type": "integer"}, "maxContains": 2, "minContains": 0}]},
    {"contains": {"const": 1}, "allOf": [{"contains": {"const": 1}, "minContains": 2}, {"contains": {"const": 1}, "maxContains": 2}]},
    {"contains": {"const": 1}, "allOf": [{"contains": {"const": "a"}}, {"contains": {"type": "null"}}]},
    {"contains": {"const": 1}, "allOf": [{"contains": {"const": 2}, "maxContains": 0, "minContains": 0}], "maxItems": 2},
    {"contains": {"const": 1}, "not": {"items": {"const": 1}}}, {"contains": {"const": 1}, "not": {"contains": {"const": 2}}},
    {"prefixItems": [{"const": 1}], "contains": {"const": 1}, "not": {"prefixItems": [True], "items": {"type": "integer"}}},
    {"contains": True, "minContains": 2, "not": {"contains": True, "minContains": 3}},
    {"allOf": [{"contains": {"type": ["integer", "string"]}, "maxContains": 2}, {"contains": {"type": "array"}, "maxContains": 1}]},
    {"oneOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]},
    {"oneOf": [{"contains": {"const": 1}}, {"contains": {"const": "a"}}, {"contains": {"type": "null"}}], "minItems": 1},
    {"contains": {"const": 1}, "allOf": [{"contains": {"enum": [1, 2]}}, {"contains": {"type": "integer"}}], "maxItems": 2},
    {"items": False, "prefixItems": [True, True], "contains": {"const": 1}, "allOf": [{"contains": {"const": 2}}]},
]


@pytest.mark.parametrize("schema", ARRAYS, ids=[str(i) for i in range(len(ARRAYS))])
def test_items_are_counted(oracle, schema):
    schema = {"type": "array", **schema}
    oracle.value(schema=schema)
    check = jsonschema.Draft202012Validator(schema)
    for count in range(4):
        for items in itertools.product(ITEMS, repeat=count):
            assert oracle.value(accepts=json.dumps(items)) == check.is_valid(list(items)), (schema, items)


TAGS = [f"t{i}" for i in range(14)]


def with_tag(tag, **more):
    return {"type": "object", "properties": {"t": {"const": tag}, tag: {"type": "integer"}, **more}, "required": ["t"], **CLOSED}


# Schemas with many alternatives. Most exclude each other.
UNIONS = [
    {"allOf": [{"if": {"properties": {"t": {"const": tag}}}, "then": {"required": [tag]}} for tag in TAGS]},
    {"allOf": [{"if": {"properties": {"t": {"const": tag}}, "required": ["t"]}, "then": with_tag(tag)} for tag in TAGS]},
    {"oneOf": [{"required": [tag]} for tag in TAGS], "properties": {tag: {"type": "integer"} for tag in TAGS}},
    {"oneOf": [with_tag(tag) for tag in TAGS]}, {"not": {"oneOf": [with_tag(tag) for tag in TAGS]}, "required": ["t"]},
    {"not": {"anyOf": [with_tag(tag) for tag in TAGS]}}, {"if": {"oneOf": [with_tag(tag) for tag in TAGS]}, "then": {"maxProperties": 1}},
    {"oneOf": [{"properties": {"t": {"type": "string"}, tag: {"type": "integer"}}, **CLOSED} for tag in TAGS[:8]]},
    {"oneOf": [{"properties": {"t": {"type": "string"}, tag: {"type": "integer"}}} for tag in TAGS[:5]], "required": ["t"]},
    {"oneOf": [{"allOf": [with_tag("t1")]}, with_tag("t1", t2={"type": "integer"}), with_tag("t2")]},
    {"oneOf": [{"properties": {"t": {"type": "string", "maxLength": n}}, "required": ["t"]} for n in range(6)]},
]
MEMBERS_OF_UNIONS = {"t": ["t1", "t2", "", "x", 1], "t1": [1, "a"], "t2": [1], "u": [1]}


@pytest.mark.parametrize("schema", UNIONS, ids=[str(i) for i in range(len(UNIONS))])
def test_alternatives_are_taken_that_fit(oracle, schema):
    schema = {"type": "object", **schema}
    check = jsonschema.Draft202012Validator(schema)
    for text in walk(oracle, schema):
        check.validate(json.loads(text))
    for count in range(4):
        for names in itertools.combinations(MEMBERS_OF_UNIONS, count):
            for members in itertools.product(*(MEMBERS_OF_UNIONS[name] for name in names)):
                value = dict(zip(names, members))
                texts = [json.dumps(dict(order)) for order in itertools.permutations(value.items())]
                assert any(oracle.value(accepts=text) for text in texts) == check.is_valid(value), value


# Patterns with ^ and $ within, and with a look-ahead at the beginning.
PATTERNS = ["^$|^a", "^(?:a|$)", "(^b)?a", "a$|^b", "^(?!a)", "^(?!ab$)[a-c]+$", "^(?=a)", "^(?!.*b)(?=.*c)", "^(a|b)?$"]
TEXTS = ["", "a", "b", "ab", "ba", "abc", "c", "bc", "aa", "ac", "cb"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_as_in_javascript(oracle, pattern):
    for schema in ({"type": "string", "pattern": pattern}, {"type": "string", "not": {"pattern": pattern}}):
        oracle.value(schema=schema)
        check = jsonschema.Draft202012Validator(schema)
        for text in TEXTS:
            assert oracle.value(accepts=json.dumps(text)) == check.is_valid(text), (schema, text)


# What a grammar cannot hold, by a part of the message.
REFUSED = [
    ({"oneOf": [{"const": [1]}, {"const": [1.0]}]}, "/: no value fits the schema"),
    ({**D2019, "$id": "http://a.org/a", "$recursiveAnchor": True, "$ref": "b",
      "$defs": {"b": {"$id": "b", "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}}}, "/$recursiveRef"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "no value fits"),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 1}, "uniqueItems": True}, "/uniqueItems"),
    ({"not": {"uniqueItems": True}}, "/not/uniqueItems"), ({"required": ["a\x7f"], "type": "object"}, "U+007F is not"),
    ({"type": "integer", "not": {"multipleOf": 997}}, "multipleOf: too large"),
    ({"type": "number", "not": {"multipleOf": 0.00001}}, "multipleOf: too large, or with too small a fraction"),
    ({"type": "number", "not": {"multipleOf": 2}, "minimum": 1e12}, "multipleOf: too large"),
    ({"type": "integer", "multipleOf": 6, "not": {"multipleOf": 3}}, "no value fits"),
    ({"type": "integer", "multipleOf": 4, "not": {"multipleOf": 3}, "minimum": 9, "maximum": 15}, "no value fits"),
    ({"allOf": [{"contains": {"const": n}} for n in range(9)]}, "/contains: 9 for one array are over 8"),
    ({"allOf": [{"contains": {"const": n}, "minContains": 20} for n in range(3)]}, "/contains: the items and counts"),
    ({"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}, "uniqueItems": True}, "/uniqueItems: not supported"),
    ({"type": "array", "contains": {"const": 1}, "minContains": 3, "maxItems": 2}, "no value fits"),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "refers to itself"), ({"$ref": "#"}, "leads to itself"),
    ({"items": {"type": "null"}, "minItems": 3_000_000_000, "type": "array"}, "minItems: at most 1073741824 is"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no value fits"),
    (counted("pqr", None, 1, "pq", **CLOSED), "no value fits"),
    (counted("pq", 3, **CLOSED), "no value fits"),
    ({"type": "string", "pattern": "a(?!b)"}, "/pattern"), ({"type": "string", "pattern": "(^a)*b"}, "/pattern"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_a_grammar_cannot_hold_is_refused(oracle, schema, message):
    assert message in oracle.ask(schema=schema).get("error", "")
