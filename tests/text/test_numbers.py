"""Numbers that are large or long. What a grammar takes fits the schema, whether its reader has whole numbers or
doubles."""

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
DIGITS = 38
LARGE = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 3, 10**14, 10**15, 2**63 - 1, 2**63, 2**64 - 1, 2e16, 3.6893488147419103e19,
         1e23, 1e37, 1.79e308, 123456789012345.5]
KEYS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        oracle.value(load=DEMO)
        yield oracle


def as_doubles(value):
    if isinstance(value, dict):
        return {key: as_doubles(each) for key, each in value.items()}
    return float(value) if isinstance(value, int) else value


def near(bound):
    """Texts of numbers around a bound."""
    whole = int(bound)
    for step in (0, 1, 2, 3, 1025, 2049, 4096, 10**6):
        for number in (whole + step, whole - step):
            yield str(number)
            yield f"{number}.0"
            yield f"{number}.5"
            yield str(-number)
    yield from ("0", "0.5", "-0.5", "1", str(10**DIGITS - 1), str(1 - 10**DIGITS))


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("key", KEYS)
def test_large_bounds_are_exact(oracle, kind, key):
    for bound in [sign * bound for bound in LARGE for sign in (1, -1)]:
        schema = {"type": kind, key: bound}
        if "error" in oracle.ask(schema=schema):
            is_past = bound >= 10**DIGITS if key.endswith("inimum") else bound <= -10**DIGITS
            assert is_past, schema
            continue
        checks = [jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(as_doubles(schema))]
        for text in near(bound):
            number = json.loads(text)
            fits = checks[0].is_valid(number) and checks[1].is_valid(float(number))
            taken = oracle.value(accepts=text)
            assert fits or not taken, (schema, text)
            # What is next to a bound may be the bound as a double.
            digits = len(text.strip("-").split(".")[0])
            is_known = isinstance(bound, int) and -2**63 <= bound < 2**64
            is_near = abs(number - bound) <= 5 * 2.0 ** -52 * abs(bound) and not (is_known and text == str(bound))
            is_written = digits <= DIGITS and "exclusive" not in key and not (kind == "integer" and "." in text)
            if fits and is_written and not is_near:
                assert taken, (schema, text)


def test_whole_bounds_of_64_bits_are_reached(oracle):
    for kind in ("integer", "number"):
        oracle.value(schema={"type": kind, "minimum": -2**63, "maximum": 2**64 - 1})
        for number, fits in [(2**64 - 1, True), (2**64, False), (-2**63, True), (-2**63 - 1, False), (2**63, True)]:
            assert oracle.value(accepts=str(number)) == fits, number


def test_large_numbers_that_are_listed_are_told_apart(oracle):
    oracle.value(schema={"enum": [2**53, 2**53 + 1, 2**64 - 1]})
    assert oracle.value(accepts=str(2**53 + 1)) and not oracle.value(accepts=str(2**53 + 2))
    oracle.value(schema={"enum": [2**53, 2**53 + 1, 7], "maximum": 2**53})
    assert oracle.value(accepts=str(2**53)) and not oracle.value(accepts=str(2**53 + 1))
    oracle.value(schema={"type": "integer", "not": {"const": 2**53}})
    # A reader of doubles takes the last one for the first.
    assert [oracle.value(accepts=str(2**53 + i)) for i in (-1, 0, 1)] == [True, False, False]
    assert "over 64 bits" in oracle.ask(schema={"const": 2**64})["error"]


BOUNDED = [{"type": "integer"}, {"type": "number"}, {"minimum": 5, "type": "integer"}, {"minimum": 0.25, "type": "number"},
           {"maximum": 5, "type": "number"}, {"maximum": -5, "type": "integer"}, {"maximum": 1e300, "type": "integer"}]


@pytest.mark.parametrize("schema", BOUNDED, ids=[str(i) for i in range(len(BOUNDED))])
def test_numbers_have_a_bound_of_digits(oracle, schema):
    oracle.value(schema=schema)
    check = jsonschema.Draft202012Validator(schema)
    for sign in ("", "-"):
        assert oracle.value(accepts=sign + "9" * DIGITS) == check.is_valid(float(f"{sign}1e37"))
        assert not oracle.value(accepts=sign + "9" * (DIGITS + 1))
        if schema["type"] == "number":
            assert oracle.value(accepts=f"{sign}9.{'9' * DIGITS}") == check.is_valid(float(f"{sign}9.9"))
            assert not oracle.value(accepts=f"{sign}9.{'9' * (DIGITS + 1)}")


def test_a_number_ends_by_itself(oracle):
    for schema in ({"type": "integer"}, {"type": "number"}, {"type": "number", "minimum": 3}):
        oracle.value(schema=schema)
        longest = max((len(oracle.value(walk=seed, limit=400)) for seed in range(100)))
        assert longest <= 2 * DIGITS + 8
        assert not oracle.value(accepts="1" * 400)


DOUBLES = {"1e308": True, "1.5e307": True, "-9.9E+307": True, "1e-320": True, "12e269": True, "1e5": True,
           "9" * 38 + "e269": True, "1e309": False, "2e308": False, "99e307": False, "9" * 38 + "e270": False}


@pytest.mark.parametrize(("text", "fits"), DOUBLES.items())
def test_numbers_are_doubles(oracle, text, fits):
    oracle.value(schema={"type": "number"})
    assert oracle.value(accepts=text) == fits
    assert not fits or abs(float(text)) < float("inf")


def test_random_bounds_hold(oracle):
    rng = random.Random(5)
    num_taken = 0
    for _ in range(150):
        bounds = {rng.choice(KEYS): rng.choice(LARGE) + rng.randint(-3, 3) for _ in range(rng.randint(1, 3))}
        schema = {"type": rng.choice(["integer", "number"]), **bounds}
        if "error" in oracle.ask(schema=schema):
            continue
        checks = [jsonschema.Draft202012Validator(each) for each in (schema, as_doubles(schema))]
        num_taken += 1
        for text in oracle.walks(10, 100):
            assert checks[0].is_valid(json.loads(text)) and checks[1].is_valid(float(text)), (schema, text)
    assert num_taken > 20, "most bounds exclude each other, but not so many"


@pytest.mark.parametrize("of, digits", [(0.05, 2), (0.01, 2), (0.1, 1)])
def test_a_multiple_is_found_wherever_the_bounds_are(oracle, of, digits):
    """Sums of doubles miss some: 29 * 0.01 is not the double that 0.29 is."""
    for i in range(0, 300, 7):
        low = f"{i * of:.{digits}f}"
        oracle.value(schema={"type": "number", "multipleOf": of, "minimum": float(low), "maximum": 100})
        assert oracle.value(accepts=low), low
        assert not oracle.value(accepts=f"{low}1"), low


def test_what_two_options_share_is_refused(oracle):
    oracle.value(schema={"oneOf": [{"type": "number", "multipleOf": 0.1, "minimum": 1.7},
                                   {"type": "number", "maximum": 100}]})
    assert not oracle.value(accepts="5") and oracle.value(accepts="5.05") and oracle.value(accepts="1.5")


@pytest.mark.parametrize("bounds", [{}, {"minimum": 5}, {"maximum": 10**30}])
def test_multiples_are_below_two_to_the_53rd(oracle, bounds):
    """A reader of doubles could not tell that larger ones are multiples, and without a bound none would have to end."""
    oracle.value(schema={"type": "integer", "multipleOf": 3, **bounds})
    assert oracle.value(accepts="9007199254740990")
    assert not oracle.value(accepts="9007199254740993") and not oracle.value(accepts="3" * 40)


def test_listed_doubles_are_written_as_they_are(oracle):
    """A quick reader of doubles gives the neighbour of every ninth."""
    numbers = [0.9452706955539223, *(random.Random(i).random() for i in range(200))]
    for number in numbers:
        oracle.value(schema={"const": number})
        assert oracle.value(accepts=repr(number)), number
    oracle.value(schema={"type": "number", "minimum": 0, "maximum": 0.9999999999999999})
    assert not oracle.value(accepts="1")
