"""Chat templates of one expression or a few statements, rendered by Berth and by jinja2 as transformers sets it up.

template_expressions.txt has a template a line, in which ¶ is a newline and ␍ a carriage return. What jinja2 refuses, Berth refuses as well.
template_differences.txt has what is known to differ, which docs/api.md says.
"""

import copy
import os
import unicodedata

import pytest
from transformers.utils import chat_template_utils

FOLDER = os.path.dirname(__file__)
MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "it's <b>"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.0}}}]},
]
D = {"one": 1, "n": {"k": "v"}, "l": [1, "a", None], "f": 1.5, "e": 1e20, "big": 12345678901234567890, "neg": -3,
     "s": "x\ny", "u": "é😀", "_x": 7, "empty": [], "nul": None}
VARIABLES = {"bos_token": "<s>"}
REFUSED = "(refused)"


def sections(name):
    """The templates by the heading above them."""
    found = {}
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        for line in file.read().split("\n"):
            if line.startswith("# "):
                templates = found.setdefault(line[2:], [])
            elif line:
                templates.append(line.replace("¶", "\n").replace("␍", "\r"))
    return found


def by_jinja2(template):
    compile_template = chat_template_utils._compile_jinja_template.__wrapped__
    try:
        return compile_template(template).render(messages=copy.deepcopy(MESSAGES), tools=None, documents=None,
                                                 add_generation_prompt=True, d=copy.deepcopy(D), **VARIABLES)
    except Exception:  # whatever the expression may raise
        return REFUSED


def by_berth(template, oracle):
    answer = oracle.ask(template=template, variables=VARIABLES)
    if "error" not in answer:
        answer = oracle.ask(render=MESSAGES, tools=None, generation=True, extra={"d": D})
    return answer.get("value", REFUSED)


def differing(templates, oracle):
    """Returns the templates that Berth renders otherwise, with both results. Twice by jinja2: a date may change
    meanwhile."""
    found = []
    for template in templates:
        before, ours, after = by_jinja2(template), by_berth(template, oracle), by_jinja2(template)
        if ours not in (before, after):
            found.append((template, f"jinja2: {before!r}", f"Berth: {ours!r}"))
    return found


def hex_range(block):
    return f"{block[0]:x}-{block[1]:x}"


EXPRESSIONS = sections("template_expressions.txt")
DIFFERENCES = sections("template_differences.txt")


METHODS = ["isalpha", "isalnum", "isdecimal", "isdigit", "isnumeric", "isspace", "isprintable", "isidentifier", "islower",
           "isupper", "istitle", "upper", "lower", "title", "capitalize", "casefold", "swapcase"]
BLOCKS = [(0, 0x180), (0x300, 0x600), (0x900, 0x980), (0x10A0, 0x10FC), (0x13A0, 0x1400), (0x1E00, 0x2900), (0x3000, 0x3400),
          (0x4E00, 0x5000), (0xAB70, 0xABC0), (0xF900, 0xFB20), (0xFE00, 0x10000), (0x1F100, 0x1F700), (0xE0000, 0xE0100)]


@pytest.mark.parametrize("block", BLOCKS, ids=hex_range)
def test_methods_know_every_character(block, oracle):
    """Methods on the characters that both versions of Unicode have."""
    chars = [chr(code) for code in range(*block) if unicodedata.category(chr(code)) != "Cn"]
    calls = "".join(f"{{{{ c.{method}() }}}} " for method in METHODS)
    oracle.value(template=f"{{% for c in chars %}}{calls}{{{{ [c] }}}}\n{{% endfor %}}", variables={})
    expected = ["".join(f"{getattr(c, method)()} " for method in METHODS) + str([c]) for c in chars]
    rendered = oracle.value(render=[], tools=None, generation=False, extra={"chars": chars})
    assert rendered == "".join(line + "\n" for line in expected)


def test_the_table_is_large():
    assert sum(map(len, EXPRESSIONS.values())) > 1000


@pytest.mark.parametrize("section", EXPRESSIONS)
def test_expressions_equal_jinja2s(section, oracle):
    assert differing(EXPRESSIONS[section], oracle) == []


@pytest.mark.parametrize("section", DIFFERENCES)
def test_what_differs_is_known(section, oracle):
    """What no longer differs belongs to the other table, and out of docs/api.md."""
    templates = DIFFERENCES[section]
    assert [found[0] for found in differing(templates, oracle)] == templates
