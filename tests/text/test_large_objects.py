"""Objects of as many names as a schema may have, and enums of as many objects. What is begun can be ended, and what is
accepted is what jsonschema accepts."""

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
COUNT = 2000
NAMES = [f"p{i}" for i in range(COUNT)]
OBJECTS = [{"a": i, "b": i} for i in range(COUNT)]
LAST = NAMES[-1]
WITH_Q = {"not": {"patternProperties": {"^q": False}}}


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        oracle.value(load=DEMO)
        yield oracle


def large(names=NAMES, **more):
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}, **more}


def few(**more):
    """More names than a parameter has bits."""
    return large([*NAMES[:70], LAST], **more)


# Schemas, and values that are in the order of their names.
SCHEMAS = {
    "open": large(),
    "closed": large(additionalProperties=False),
    "required": large(required=["p3", "p1000"]),
    "the last is required": large(required=[LAST], additionalProperties=False),
    "at least one": large(minProperties=1),
    "at most three": large(maxProperties=3),
    "two or three": large(minProperties=2, maxProperties=3, required=["p3"]),
    "one of another name": few(**WITH_Q),
    "three, one of another name": few(**WITH_Q, minProperties=3, maxProperties=3),
    "objects": {"enum": OBJECTS},
}
VALUES = [
    {}, {"p0": 1}, {LAST: 1}, {"p3": 1, "p1000": 2}, {"p3": 1, "p999": 1, "p1000": 2, LAST: 3}, {"p5": "a"},
    {name: 1 for name in NAMES[::50]}, {"other": "a"}, {"q": 1}, {"p3": 1, "q": 1}, {"p3": 1, LAST: 2, "q": 1},
    {"p3": 1, "q": 1, "qq": 1}, {"p3": 1, "q": 1, "other": 1}, {"p3": 1, "other": [1]}, OBJECTS[0], OBJECTS[-1],
    {"a": 1, "b": 2}]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_large_objects(oracle, name, any_order):
    schema = SCHEMAS[name]
    oracle.value(schema=schema, any_order=any_order)
    check = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        assert oracle.value(accepts=json.dumps(value)) == check.is_valid(value), value
    for seed in range(5):
        text = oracle.value(walk=seed, limit=300)
        if text is not None:
            check.validate(json.loads(text))


@pytest.mark.parametrize("required", [[], ["p7"]])
def test_names_keep_the_order_of_the_schema(oracle, required):
    oracle.value(schema=large(additionalProperties=False, required=required))
    for names, fits in ((["p7", "p8"], True), (["p7", "p6"], False), (["p7", "p7"], False), (["p7", LAST], True),
                        ([LAST, "p7"], False), (["p6", "p7"], True), (["p6", "p8"], not required)):
        text = "{" + ", ".join(f'"{name}": 1' for name in names) + "}"
        assert oracle.value(accepts=text) == fits, names


SOME = [dict.fromkeys([*own, *others], 1) for count in range(4) for own in itertools.combinations("abc", count)
        for others in ([], ["q"], ["o"], ["o", "q"], ["q", "qq"], ["o", "oo", "q"])]
COUNTS = [None, 0, 1, 2, 4]


@pytest.mark.parametrize("more", [{}, WITH_Q], ids=["open", "one of another name"])
@pytest.mark.parametrize("required", [[], ["b"], ["a", "c"]])
def test_counts_in_the_order_of_the_schema(oracle, required, more):
    for least, most in itertools.product(COUNTS, COUNTS):
        counts = {"minProperties": least, "maxProperties": most}
        schema = large("abc", required=required, **more, **{key: n for key, n in counts.items() if n is not None})
        check = jsonschema.Draft202012Validator(schema)
        fits = [check.is_valid(value) for value in SOME]
        if "error" in oracle.ask(schema=schema):
            assert not any(fits), schema
            continue
        for value, is_valid in zip(SOME, fits):
            assert oracle.value(accepts=json.dumps(value)) == is_valid, (counts, value)
