"""JSON schemas that have to be written anew for a grammar, and those that Pydantic makes. Random texts of each grammar fit
the schema. Where there are few texts, all of them come."""

import json
import os
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
    texts = [oracle.value(walk=seed, limit=LIMIT) for seed in range(count)]
    return [text for text in texts if text is not None]


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
    texts = walk(oracle, schema, 10 * WALKS)
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


# What a grammar cannot hold, by a part of the message.
REFUSED = [
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"type": "object", "properties": {"t": {"const": 1}}},
                {"type": "object", "properties": {"t": {"const": 2}}}]}, "oneOf"),
    ({"oneOf": [{"const": [1]}, {"const": [1.0]}]}, "oneOf"),
    ({"oneOf": [{"properties": {"t": {"const": 1}}, "required": ["t"]},
                {"properties": {"t": {"const": 2}}, "required": ["t"]}]}, "oneOf"),
    ({"uniqueItems": True}, "/uniqueItems"),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "/uniqueItems"),
    ({"type": "array", "items": {"enum": [1, 2, 3, 4, 5, 6]}, "uniqueItems": True}, "/uniqueItems: 6 distinct values"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "/uniqueItems: 2 distinct values"),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 1}, "uniqueItems": True}, "/uniqueItems"),
    ({"type": "object", "propertyNames": {"minLength": 3}}, "/propertyNames"),
    ({"type": "object", "propertyNames": {"pattern": "a"}, "properties": {"b": {}}}, "/propertyNames"),
    (counted("pqr", None, 1, "pq", **CLOSED), "/maxProperties"),
    (counted("pq", 4), "/minProperties"),
    (counted("pq", 3, **CLOSED), "/minProperties"),
    ({"properties": P, "minProperties": 2}, "\"type\": \"object\""),
    ({"discriminator": {"propertyName": 3}, "oneOf": [{"type": "null"}]}, "/discriminator/propertyName"),
    ({"discriminator": {"propertyName": "a", "other": 1}, "oneOf": [{"type": "null"}]}, "/discriminator/other"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_a_grammar_cannot_hold_is_refused(oracle, schema, message):
    assert message in oracle.ask(schema=schema).get("error", "")
