#!/usr/bin/env python3
"""Lints the texts that users and newcomers read: plain sentences of at most 30 words, without certain patterns.

    tools/lint/lint_text.py            checks everything that COVERED lists; exits 1 when it finds something
    tools/lint/lint_text.py FILE...    checks these files, covered or not

What it reads of a file depends on its name. Markdown: all text but code blocks. Code (C++, CUDA, protos, Rust): the
comments. Sources (.cc): also the string literals of errors and log lines, that is of absl::...Error(...), StrCat,
StrFormat and spdlog::info(...) and its like. Python: comments and docstrings. Shell (.sh, dev): comments, and the texts
that cat prints.
Markdown covers --help and the metrics' help as well: docs/flags.md and docs/metrics.md are generated from them.

COVERED lists every folder of our own. Add a new one there.
"""

import ast
import fnmatch
import io
import os
import re
import subprocess
import sys
import tokenize

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))

# Patterns of paths; * also matches a slash.
COVERED = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "THIRD_PARTY.md",
    "base/*",
    "bench/*",
    "cache/*",
    "client/*",
    "clients/*",
    "deploy/*",
    "dev",
    "docs/*.md",
    "flags/*",
    "models/*",
    "proto/*",
    "scheduler/*",
    "server/*",
    "tests/*",
    "text/*",
    "tools/*",
]

MAX_WORDS = 30

# (what is wrong, a regular expression). A sentence has one space between words and X for each piece of inline code.
PATTERNS = [
    ("starts with 'Of ...': start with the subject", r"^(\W*)Of (?!course)"),
    ("starts with 'The same' or 'Those': name the subject", r"^\W*(The same|Those)\b"),
    ("'of which': begin a new sentence or clause", r"\b[Oo]f which\b"),
    ("'so many' or 'so much': name the quantity", r"\bso (many|much)\b(?! (that|as)\b)"),
    ("'goes by': say what it uses", r"\bgo(es)? by\b"),
    ("ends with 'what ... is': put the verb next to its subject",
     r"\bwhat( [\w'-]+){1,6} (is|are|was|were|has|have|had|does|do|did)[.;]?$"),
    ("'none may': say what must hold", r"\bnone may\b"),
    ("'who comes': name the actor", r"\bwho( \w+)? (comes|came|come)\b"),
    ("'in company': say 'in a batch' or 'with other requests'", r"\b([Ii]n|other|any|[Cc]ompany and) company\b|^Company\b"),
    ("'is no <noun>': say 'is not a ...'",
     r"(?<!\b[Tt]here )\b(is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|\w+er (than)\b)"),
    ("'nobody': name the actor", r"\b[Nn]obody\b"),
    ("'but for' in the sense of 'except'", r"\bbut for\b"),
    ("'goes on' or 'gone on': say 'continues' or 'resumes'", r"\b(go|goes|gone|went|going) on\b"),
    ("'gives way': say 'is preempted'", r"\b(give|gives|gave|given|giving) way\b"),
    ("'guess': say 'draft token'", r"\b[Gg]uess(es|ed)?\b"),
    ("'as X says': say what happens", r"\bas (the |its )?[\w-]+ says\b"),
    ("'does without'", r"\b(do|does|did) without[.,;)]"),
    ("'look out for'", r"\blooks? out for\b"),
    ("'to be had'", r"\b(to|can|could) be had\b"),
    ("'none of' after a verb: say 'is not one of'", r"(?<!\b[Tt]here )\b(is|are) none( of\b|[.;,)])"),
    ("'that ... alone' for 'only'", r"\bknown at the end\b"),
    ("'waited for'", r"\bwaited for\b"),
]
COMPILED = [(what, re.compile(pattern)) for what, pattern in PATTERNS]

# Ends of words that are not ends of sentences.
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|cf|etc|No|Fig|et al)\.(?=\s)")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[\"'(\[*]*[A-Z0-9]|X\b)")
WORD = re.compile(r"[^\s]*[A-Za-z0-9][^\s]*")


def plain(text):
    """Markdown's marks and links away, inline code to X."""
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<https?://[^>]*>|https?://\S+", "X", text)
    text = re.sub(r"<!--.*?-->", "", text)
    return re.sub(r"\s+", " ", text.replace("**", "").replace("|", " ")).strip()


def sentences(text):
    text = ABBREVIATIONS.sub(lambda match: match.group(1) + "\u2024", plain(text))
    return [part.strip() for part in SENTENCE_END.split(text) if part and part.strip()]


def faults(text):
    """What is wrong with one block of text: (fault, sentence) pairs."""
    found = []
    for sentence in sentences(text):
        words = len(WORD.findall(sentence))
        if words > MAX_WORDS:
            found.append((f"{words} words, at most {MAX_WORDS}", sentence))
        found.extend((what, sentence) for what, pattern in COMPILED if pattern.search(sentence))
    return found


def markdown_blocks(source):
    """(line, text) of each paragraph, item, heading and table cell."""
    block, start, fenced, comment = [], 0, False, False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
        comment = comment or stripped.startswith("<!--")
        ends = fenced or comment or not stripped or stripped.startswith(("```", "~~~", "|", "#"))
        comment = comment and "-->" not in stripped
        if (ends or re.match(r"([-*+]|\d+\.) ", stripped)) and block:
            yield start, " ".join(block)
            block = []
        if stripped.startswith("|") and not fenced:
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield number, cell
        elif stripped.startswith("#") and not fenced:
            yield number, stripped.lstrip("# ")
        elif not ends:
            start = start if block else number
            block.append(re.sub(r"^([-*+]|\d+\.) ", "", stripped) if not block else stripped)


def comment_blocks(source):
    """(line, text) of each run of // comments, and of each item or row in it; deeper lines are code or drawings."""
    block, start = [], 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        match = re.match(r"^(.*?)//[/!]?(.*)$", line) if '"' not in line.split("//")[0] else None
        before, text = (match.group(1), match.group(2)) if match else ("", None)
        own_line = text is not None and not before.strip()
        item = own_line and (re.match(r"\s*([-*]|\d+\.) ", text) or re.match(r"\s{2,}\S+( \S+)*\s{2,}\S", text))
        drawing = own_line and re.match(r"\s{4,}\S|\s*[|+]", text) and not item and not (block and block[0] == "-")
        if block and (not own_line or item or drawing or not text.strip()):
            yield start, " ".join(part for part in block if part != "-")
            block = []
        if text is None or drawing or not text.strip() or "clang-format" in text or "NOLINT" in text:
            continue
        if item:
            block = ["-"]
            text = re.sub(r"\s*([-*]|\d+\.) ", "", text, count=1)
        if not block or block == ["-"]:
            start = number
        block.append(text.strip())


CALL = re.compile(r"\b(absl::\w+Error|absl::StrCat|absl::StrAppend|absl::StrFormat|spdlog::\w+|Bad|Invalid)\(")


def literal_blocks(source):
    """(line, text) of the string literals of each error and log line; other arguments and {} become X."""
    at = 0
    while match := CALL.search(source, at):
        start, depth, position, text = match.start(), 1, match.end(), []
        while depth and position < len(source):
            string = re.compile(r'"((?:[^"\\]|\\.)*)"').match(source, position)
            if string:
                text.append(string.group(1).replace("\\n", " ").replace('\\"', '"'))
                position = string.end()
                continue
            character = source[position]
            depth += (character == "(") - (character == ")")
            if match.group(1).startswith("spdlog") and character == "," and depth == 1:
                if text and text[-1] != "\0":
                    break  # at the format's arguments
                text = []  # without the level
            if character not in "(), \n" and (not text or text[-1] != "\0"):
                text.append("\0")
            position += 1
        joined = re.sub(r"\{[^{}]*\}", "X", "".join(text).replace("\0", "X"))
        if re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}", joined):
            yield source.count("\n", 0, start) + 1, joined
        at = position


def source_blocks(source):
    yield from comment_blocks(source)
    yield from literal_blocks(source)


def python_blocks(source):
    """As comment_blocks, of # comments and of docstrings."""
    lines = [""] * (source.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            before = "code " if token.line[:token.start[1]].strip() else ""
            lines[token.start[0] - 1] = f"{before}//{token.string[1:]}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for number, line in enumerate((ast.get_docstring(node, clean=False) or "").splitlines()):
                indent = node.body[0].col_offset if number else 0
                lines[node.body[0].lineno - 1 + number] = f"// {line[indent:]}"
    yield from comment_blocks("\n".join(lines))


def shell_blocks(source):
    """As comment_blocks, of # comments, and of the rows that `cat <<'EOF'` prints; a row's other lines are indented."""
    lines, printed = [], False
    for line in source.splitlines():
        if printed and line != "EOF":
            lines.append(f"//{' ' if line.startswith(' ') else '- '}{line.strip()}")
        else:
            comment = re.match(r"""([^"']*?\s|)#(?!!| shellcheck )(.*)$""", line)
            lines.append(f"{comment.group(1)}//{comment.group(2)}" if comment and not printed else "")
        printed = line.endswith("cat <<'EOF'") or (printed and line != "EOF")
    yield from comment_blocks("\n".join(lines))


READERS = {".md": markdown_blocks, ".cc": source_blocks, ".py": python_blocks, ".sh": shell_blocks, "dev": shell_blocks,
           **dict.fromkeys((".h", ".inc", ".cu", ".cuh", ".proto", ".rs"), comment_blocks)}


def reader_of(path):
    return READERS.get(os.path.splitext(path)[1] or path)


def lint(path, source):
    reader = reader_of(path)
    blocks = reader(source) if reader else []
    return [(path, line, fault, sentence) for line, text in blocks for fault, sentence in faults(text)]


def covered_files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if any(fnmatch.fnmatch(path, pattern) for pattern in COVERED)
            and reader_of(path) and os.path.exists(os.path.join(ROOT, path))]


def main(arguments):
    found = []
    for path in arguments or covered_files():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            found.extend(lint(path, file.read()))
    for path, line, fault, sentence in found:
        print(f"{path}:{line}: {fault}\n    {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
