"""Random JSON schemas, regular expressions and choices, each with a pattern of its texts.

A pattern is a regular expression of the `regex` module. It knows nothing of the server's compiler. Tests decide with it
whether a text is what was asked for, and with `partial` whether a text that was cut short can still become that.
"""

import dataclasses
import json

import jsonschema
import regex

SPACE = r"[ \t\r\n]*"
CHARACTER = r"""(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})"""
# As docs/structured-output.md bounds them: at most 38 digits before the point and after it, and the value is a double.
INTEGER = r"-?(?:0|[1-9][0-9]{0,37})"
FRACTION = r"(?:\.[0-9]{1,38})?"
NUMBER = (rf"(?:{INTEGER}{FRACTION}(?:[eE](?:-[0-9]{{1,3}}|\+?(?:[01]?[0-9]{{1,2}}|2[0-6][0-9])))?"
          rf"|-?[0-9]{FRACTION}[eE]\+?(?:2[7-9][0-9]|30[0-7])|-?1(?:\.0)?[eE]\+?308)")
WORDS = ["name", "age", "home", "colour", "fox", "river", "the_long_key", "x", "naïve", "a b"]
# Regular expressions that schemas and requests share: both dialects read them alike.
EXPRESSIONS = ["[a-f]{2,5}", "(yes|no|maybe)", "[0-9]{3}-[0-9]{2}", "a+b*", "(ab|cd){1,3}x?", "[A-Z][a-z]{0,6}"]


@dataclasses.dataclass(frozen=True)
class Structure:
    """A structure to ask for. `fields` are those of the message Structure."""

    fields: dict
    pattern: regex.Pattern
    schema: object = None

    def is_complete(self, text):
        """Whether the text is all of what was asked for."""
        if self.schema is not None:
            try:
                value = json.loads(text)
            except ValueError:
                return False
            checker = jsonschema.Draft202012Validator
            if not checker(self.schema, format_checker=checker.FORMAT_CHECKER).is_valid(value):
                return False
        return self.pattern.fullmatch(text) is not None

    def is_prefix(self, text):
        """Whether the text, cut short, can become one."""
        return self.pattern.fullmatch(text, partial=True) is not None


@dataclasses.dataclass(frozen=True)
class Depth:
    """How deep schemas may nest, and what kind they are (make_structure)."""

    levels: int
    exact: bool

    def below(self):
        return Depth(self.levels - 1, self.exact)


def literal(value):
    """A pattern of a value as JSON writes it."""
    return regex.escape(json.dumps(value, ensure_ascii=False))


def make_string(rng, depth):
    choice = rng.randrange(3 if depth.exact else 4)
    if choice == 0:
        return {"type": "string", "maxLength": rng.randint(1, 12)}, lambda s: f'"{CHARACTER}{{0,{s["maxLength"]}}}"'
    if choice == 1:
        low = rng.randint(0, 3)
        return ({"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 8)},
                lambda s: f'"{CHARACTER}{{{s["minLength"]},{s["maxLength"]}}}"')
    if choice == 2:
        expression = rng.choice(EXPRESSIONS)
        return {"type": "string", "pattern": f"^{expression}$"}, lambda _: f'"(?:{expression})"'
    return {"type": "string", "format": "date"}, lambda _: '"[0-9]{4}-[0-9]{2}-[0-9]{2}"'


def make_number(rng, depth):
    if depth.exact:
        return rng.choice([({"type": "integer"}, lambda _: INTEGER), ({"type": "number"}, lambda _: NUMBER),
                           ({"type": "boolean"}, lambda _: "(?:true|false)")])
    choice = rng.randrange(4)
    if choice == 0:
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)}, lambda _: INTEGER
    if choice == 1:
        return {"type": "integer", "exclusiveMinimum": rng.randint(-9, 9), "maximum": 1000}, lambda _: INTEGER
    if choice == 2:
        return {"type": "number", "minimum": -1.5, "maximum": rng.choice([0, 2.5, 100])}, lambda _: NUMBER
    return {"type": "boolean"}, lambda _: "(?:true|false)"


def make_literal(rng, _):
    values = rng.sample(["red", "green", "blue\n", 'a "b"', 17, -3, True, None, "ünï", 2.5], rng.randint(1, 4))
    if len(values) == 1:
        return {"const": values[0]}, lambda s: literal(s["const"])
    return {"enum": values}, lambda s: "(?:" + "|".join(map(literal, s["enum"])) + ")"


def make_array(rng, depth):
    item, pattern = make_value(rng, depth.below())
    low = rng.randint(0, 2)
    high = low + rng.randint(0, 2)
    schema = {"type": "array", "items": item, "minItems": low, "maxItems": high}

    def text(_):
        if high == 0:
            return rf"\[{SPACE}\]"
        more = rf"(?:{SPACE},{SPACE}{pattern}){{{max(low - 1, 0)},{high - 1}}}"
        return rf"\[{SPACE}(?:{pattern}{more}){'?' if low == 0 else ''}{SPACE}\]"

    return schema, text


def make_object(rng, depth):
    names = rng.sample(WORDS, rng.randint(1, 4))
    members = {name: make_value(rng, depth.below()) for name in names}
    required = [name for name in names if rng.random() < 0.7]
    schema = {"type": "object", "properties": {name: schema for name, (schema, _) in members.items()},
              "required": required, "additionalProperties": False}

    def text(_):
        # Properties come in their order, and those that are not required may be missing.
        member = {name: f"{literal(name)}{SPACE}:{SPACE}{pattern}" for name, (_, pattern) in members.items()}
        first, rest = "", ""
        for name in reversed(names):  # rest: what may follow an earlier member; first: what may follow the brace
            here = member[name]
            if name in required:
                first, rest = f"{here}{rest}", f"{SPACE},{SPACE}{here}{rest}"
            else:
                first = f"(?:{here}{rest}" + (f"|{first})" if first else ")?")
                rest = f"(?:{SPACE},{SPACE}{here})?{rest}"
        return rf"\{{{SPACE}{first}{SPACE}\}}"

    return schema, text


def make_either(rng, depth):
    (one, first), (two, second) = make_value(rng, depth.below()), make_value(rng, depth.below())
    return {"anyOf": [one, two]}, lambda _: f"(?:{first}|{second})"


def make_value(rng, depth):
    """A schema, and a pattern of its values."""
    makers = [make_string, make_number, make_literal]
    if depth.levels > 0:
        makers += [make_array, make_object, make_object, make_either]
    schema, text = rng.choice(makers)(rng, depth)
    return schema, text(schema)


def make_schema(rng, exact=False):
    """A structure of a JSON schema, an object mostly."""
    depth = Depth(2, exact)
    if rng.random() < 0.7:
        schema, text = make_object(rng, depth)
        pattern = text(schema)
    else:
        schema, pattern = make_value(rng, depth)
    fields = {"json_schema": json.dumps(schema, ensure_ascii=False)}
    return Structure(fields, regex.compile(pattern, regex.DOTALL), schema)


def make_regex(rng, exact=False):
    expression = "".join(rng.choice(EXPRESSIONS) for _ in range(rng.randint(1, 3)))
    return Structure({"regex": expression}, regex.compile(expression))


def make_choice(rng, exact=False):
    choices = rng.sample(["yes", "no", "maybe", "The fox ran home.", "naïve", "a\nb", "yes, and more", " x"],
                         rng.randint(1, 4))
    return Structure({"choice": {"choices": choices}}, regex.compile("|".join(map(regex.escape, choices))))


def make_structure(rng, exact=False):
    """Three of four are schemas. `exact`: the pattern matches the structure's texts and no others. Else it may match
    more, such as numbers out of range."""
    return rng.choice([make_schema] * 6 + [make_regex, make_choice])(rng, exact)


def make_endless(rng):
    """An array that needs too many random values to end. Its texts are the beginnings of it."""
    item, pattern = make_value(rng, Depth(2, False))
    fields = {"json_schema": json.dumps({"type": "array", "items": item, "minItems": 10**9}, ensure_ascii=False)}
    return Structure(fields, regex.compile(rf"\[{SPACE}{pattern}(?:{SPACE},{SPACE}{pattern})*", regex.DOTALL))


def set_structure(request, fields):
    """Puts the fields of a structures.Structure into the request."""
    fields = dict(fields)
    if "choice" in fields:
        request.structure.choice.choices.extend(fields.pop("choice")["choices"])
    for name, value in fields.items():
        setattr(request.structure, name, value)
