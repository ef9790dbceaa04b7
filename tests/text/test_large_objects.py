"""Objects of as many names as a schema may have, and enums of as many objects. What is begun can be ended, and what is
accepted is what jsonschema accepts."""

import itertools
import json
import os
import random
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


SOME_NAMES = ["a", "ab", *NAMES[:70]]
CLOSED = {"type": "object", "properties": {name: {"type": ["integer", "string"]} for name in SOME_NAMES},
          "additionalProperties": False}


def with_first(inner):
    return {**CLOSED, "properties": {**CLOSED["properties"], "p0": inner}}


# Few are left where all that is required has come.
NEARLY_ALL = {**CLOSED, "properties": dict.fromkeys(SOME_NAMES[:66], {"type": ["integer", "string"]}),
              "required": SOME_NAMES[6:66]}
SEVERAL_OBJECTS = {
    "one needs another": {**NEARLY_ALL, "dependentRequired": {"a": ["ab"], "p0": ["p1", "p2"]}},
    "one excludes another": {**NEARLY_ALL, "dependentSchemas": {"a": {"properties": {"ab": False, "p0": False}}}},
    "one of three": {**NEARLY_ALL, "oneOf": [{"required": [name]} for name in ("a", "ab", "p0")]},
    "other values": {**NEARLY_ALL, "dependentSchemas": {"a": {"properties": {"ab": {"type": "integer"}}}}},
    "others too": {**NEARLY_ALL, "patternProperties": {"^x": {"type": "integer"}}, "dependentRequired": {"a": ["ab"]}},
    "others, one of them refused": {**NEARLY_ALL, "patternProperties": {"^x": {"type": "integer"}},
                                    "anyOf": [{"properties": {"x1": False}}, {"properties": {"p0": False}}]},
    "others of two kinds": {**NEARLY_ALL, "patternProperties": {"^x": True}, "additionalProperties": True,
                            "dependentSchemas": {"a": {"additionalProperties": {"type": "integer"}}}},
}
IN_ORDER = ["other values", "others, one of them refused", "others of two kinds"]
CLOSED_SCHEMAS = {
    "optional": CLOSED,
    "some required": {**CLOSED, "required": ["ab", "p3", "p69"]},
    "64 required": {**CLOSED, "required": SOME_NAMES[8:]},
    "all needed": {**CLOSED, "minProperties": len(SOME_NAMES)},
    "all but one needed": {**CLOSED, "minProperties": len(SOME_NAMES) - 1, "required": ["p7"]},
    "at most 66": {**CLOSED, "maxProperties": 66, "required": ["a"]},
    "with bounded names": with_first({"type": "object", "patternProperties": {"^[xy]$": {"type": "integer"}},
                                      "additionalProperties": False}),
    "with free names": with_first({"type": "object"}),
}


@pytest.mark.parametrize("name", CLOSED_SCHEMAS)
def test_large_closed_objects_in_any_order(oracle, name):
    schema = CLOSED_SCHEMAS[name]
    oracle.value(schema=schema, any_order=True)
    check = jsonschema.Draft202012Validator(schema)
    shuffle = random.Random(0)
    for missing in [[], ["p7"], ["a"], ["p8", "p9"], SOME_NAMES[:8], SOME_NAMES[:40], SOME_NAMES[:69], SOME_NAMES]:
        for _ in range(5):
            own = [name for name in SOME_NAMES if name not in missing]
            shuffle.shuffle(own)
            value = {name: shuffle.choice(["x", 12]) for name in own}
            if name.startswith("with") and "p0" in value:
                value["p0"] = {"x": 1}
            text = json.dumps(value)
            assert oracle.value(accepts=text) == check.is_valid(value), (missing, text)
            for more in ["", '"a": 1', '"p7": 1', '"q": 1']:
                with_more = f"{text[:-1]}, {more}}}"
                is_new = value != {} and more[1:-4] in missing and check.is_valid(json.loads(with_more))
                assert oracle.value(accepts=with_more) == is_new, with_more


def no_listed_name_twice(members):
    names = [name for name, _ in members if name in SOME_NAMES]
    assert len({*names}) == len(names), members
    return dict(members)


@pytest.mark.parametrize("name", SEVERAL_OBJECTS)
def test_several_large_objects_in_any_order(oracle, name):
    """Where a name's values depend on others, names keep their order. So texts in any order may be refused, never accepted
    wrongly."""
    schema = SEVERAL_OBJECTS[name]
    oracle.value(schema=schema, any_order=True)
    check = jsonschema.Draft202012Validator(schema)
    shuffle = random.Random(0)
    for more in powerset(["a", "ab", "p0", "p1", "p2", "x1", "y"]):
        own = [*NEARLY_ALL["required"], *(name for name in more if name not in NEARLY_ALL["required"])]
        shuffle.shuffle(own)
        value = {name: shuffle.choice(["x", 12]) if name in SOME_NAMES else 1 for name in own}
        is_taken = oracle.value(accepts=json.dumps(value))
        is_valid = check.is_valid(value)
        assert is_taken == is_valid or (not is_taken and name in IN_ORDER), more
    if name in ("others too", "one needs another"):
        assert not oracle.value(accepts=json.dumps({**value, "a": 1})[:-1] + ', "a": 1}')


def test_a_large_closed_object_that_may_not_repeat_keeps_its_order(oracle):
    oracle.value(schema={"type": "array", "items": NEARLY_ALL, "uniqueItems": True}, any_order=True)
    first, second = (json.dumps({name: value for name in NEARLY_ALL["required"]}) for value in (1, 2))
    assert oracle.value(accepts=f"[{first}, {second}]")
    assert not oracle.value(accepts=f"[{first}, {first}]")
    assert not oracle.value(accepts=json.dumps([dict(reversed(json.loads(first).items()))]))


def powerset(names):
    return itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))


@pytest.mark.parametrize("is_nested", [False, True])
# Random texts hardly ever have names that are required beside any others, and do not end.
@pytest.mark.parametrize("name", [*CLOSED_SCHEMAS, *SEVERAL_OBJECTS][:-1])
def test_a_large_object_can_always_end(oracle, name, is_nested):
    schema = CLOSED_SCHEMAS.get(name) or SEVERAL_OBJECTS[name]
    if is_nested:  # after the inner object a comma may be out in the outer one too
        inner = {**schema, "properties": {**schema["properties"], "p1": CLOSED_SCHEMAS["all needed"]}}
        schema = {"type": "array", "items": inner, "minItems": 1, "maxItems": 2}
    oracle.value(schema=schema, any_order=True)
    check = jsonschema.Draft202012Validator(schema)
    for text in oracle.walks(5, 20000):
        check.validate(json.loads(text, object_pairs_hook=no_listed_name_twice))


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
