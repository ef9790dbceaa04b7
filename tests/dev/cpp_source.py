"""Reads what clang-format wrote: the functions and classes of a C++ file, without a compiler.

A brace opens a namespace, a class, a function or an initialiser. The words before it say which: clang-format leaves a
space before the brace of a body and none before that of a member's initialiser, so `Pool() : size_{1} {` has one body.
"""

import re
from dataclasses import dataclass, field

SKIPPED = re.compile(
    r'R"(?P<raw>\w*)\(.*?\)(?P=raw)"'  # a raw string
    r"|//[^\n]*|/\*.*?\*/"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'"  # a character, not the ' of 10'000
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",  # a directive, with the lines that continue it
    re.M | re.S)
SCOPE = re.compile(r"(?:\w+ )*?(?:namespace|extern|class|struct|union|enum)\b")


@dataclass
class Function:
    name: str
    line: int
    lines: int


@dataclass
class Class:
    name: str
    public_methods: list = field(default_factory=list)
    constructor_arguments: int = 0


def blank(text):
    """Returns the text without comments, strings and directives, with the same lines."""
    return SKIPPED.sub(lambda match: ('""' if match[0][0] in 'R"' else " ") + "\n" * match[0].count("\n"), text)


def without(text, opening, closing):
    """Returns the text without what stands between the two brackets, which may nest."""
    kept, depth = [], 0
    for letter in text:
        depth += letter == opening
        if depth == 0:
            kept.append(letter)
        depth -= letter == closing and depth > 0
    return "".join(kept)


def plain(head):
    """A declaration on one line, without templates, attributes and annotations."""
    head = re.sub(r"operator\s*(<=>|<<=?|>>=?|<=|>=|<|>|->|\(\))", "operator_", head.replace("->", " "))
    head = without(re.sub(r"\[\[.*?\]\]|\b(?:ABSL|BERTH)_[A-Z_]+(?:\([^()]*\))?|(?:alignas|__launch_bounds__)\([^()]*\)", " ", head), "<", ">")
    return re.sub(r"\s+", " ", re.sub(r"^(\s*template\b|\s*(public|private|protected):)+", "", head)).strip()


def name_of(head):
    """The name before the first parenthesis, or "" if the declaration is not one of a function. A test's: Suite.Name."""
    test = re.match(r"TEST(?:_[FP])?\((\w+), (\w+)\)$", plain(head))
    if test:
        return f"{test[1]}.{test[2]}"
    before = plain(head).partition("(")
    found = re.search(r"(?:operator ?\S+|~?[\w:]+)$", before[0].strip())
    return found[0] if before[1] and found and " = " not in before[0] else ""


def num_arguments(head):
    """Counts the arguments in the first parentheses."""
    inside, depth = plain(head).partition("(")[2], 1
    count = 0 if inside.lstrip().startswith(")") else 1
    for letter in inside:
        depth += (letter in "({[") - (letter in ")}]")
        if depth == 0:
            break
        count += letter == "," and depth == 1
    return count


class Reader:
    """Walks over the text once. `functions` and `classes` are what it found."""

    def __init__(self, text):
        self.text = blank(text)
        self.at = 0
        self.functions, self.classes = [], []
        self.scope(None)
        assert self.at >= len(self.text), f"line {self.line(self.at)}: a closing brace too many"

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def skip(self):
        """Steps over a block; `at` is at its opening brace."""
        depth = 0
        while self.at < len(self.text):
            depth += (self.text[self.at] == "{") - (self.text[self.at] == "}")
            self.at += 1
            if depth == 0:
                return
        raise AssertionError("a brace is never closed")

    def scope(self, outer, access="public"):
        """Reads declarations up to the brace that closes the scope."""
        start, parentheses = self.at, 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            parentheses += (letter == "(") - (letter == ")")
            if letter == "}" and parentheses == 0:
                return
            if letter == ";" and parentheses == 0:
                self.declared(outer, access, self.text[start:self.at])
                start = self.at + 1
            elif letter == ":" and re.fullmatch(r"\s*(public|private|protected)", self.text[start:self.at]):
                access, start = self.text[start:self.at].strip(), self.at + 1
            elif letter == "{":
                if self.block(outer, access, start, parentheses):
                    start = self.at
                continue
            self.at += 1

    def block(self, outer, access, start, parentheses):
        """Reads a block. Returns whether it ends the declaration that began at `start`."""
        head = self.text[start:self.at]
        scoped = SCOPE.match(plain(head)) and not name_of(head)
        if scoped and " = " not in plain(head) and parentheses == 0:
            self.at += 1
            kind = re.search(r"\b(namespace|extern|class|struct|union|enum)\b", plain(head))[1]
            if kind == "enum":
                self.at -= 1
                self.skip()
                return False
            inner = None
            if kind in ("class", "struct"):
                names = re.findall(r"\w+", re.sub(r"\bfinal\b| : .*", "", plain(head)))
                inner = Class((outer.name + "::" if outer else "") + names[-1])
                self.classes.append(inner)
            self.scope(inner, "private" if kind == "class" else "public")
            self.at += 1
            return kind in ("namespace", "extern")
        body = parentheses == 0 and self.text[self.at - 1].isspace() and name_of(head)
        self.skip()
        if not body:
            return False
        self.declared(outer, access, head)
        first = self.line(start + len(head) - len(head.lstrip()))
        self.functions.append(Function(name_of(head), first, self.line(self.at - 1) - first + 1))
        return True

    def declared(self, outer, access, head):
        """Counts a declaration of a class. Constructors, friends, operator= and deleted methods do not count."""
        name = name_of(head)
        if outer is None or not name or re.match(r"(friend|using|typedef|static_assert)\b", plain(head)):
            return
        if name == outer.name.rpartition("::")[2]:
            outer.constructor_arguments = max(outer.constructor_arguments, num_arguments(head))
        elif access == "public" and name[0] != "~" and name != "operator=" and not re.search(r"= (delete|default)$", plain(head)):
            outer.public_methods.append(name)
