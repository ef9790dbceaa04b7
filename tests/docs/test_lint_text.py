"""The text lint finds what it should, leaves good sentences alone, and passes on the tree."""

import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/lint"))
import lint_text  # noqa: E402

BAD = [
    "Of the matrices of dense products: auto, int8 or int4.",
    "Keep the newest so many tokens.",
    "Products go by tiles where the processor has them.",
    "Names the request for the logs, whatever the model is called, and what its first state is.",
    "All pairs are compared, of which none may differ.",
    "Workers spin and then sleep; who comes late starts later.",
    "The bits are the same in company.",
    "Company and chunks leave the bits alone.",
    "The value 'x' is no duration.",
    "Logits that are no numbers end the request.",
    "Nobody waits for a worker that has not begun.",
    "All of them are cached but for the last one.",
    "A request goes on from the saved states.",
    "A sequence that gives way keeps its cache.",
    "A step checks that many guesses.",
    "The weights are stored as --dtype says, in order.",
    "A disk that is full does without.",
    "The value is none of auto, int8.",
    "Its workers look out for the next kernel.",
    "A lease grows as soon as memory can be had.",
    "The best output is known at the end alone.",
    "Workers that wake late are not waited for.",
    "The same of all streams.",
    "Those of other tenants look unknown.",
    "A load of 10 requests, of which two wait.",
    "word " * 31 + "ends.",
]

GOOD = [
    "Data type of the linear-layer weights: auto (same as --dtype), int8, or int4 (CPU only).",
    "There is no free unit, and the lease stays unchanged.",
    "The value is no longer than its limit.",
    "Workers spin for 100 us, then sleep. A kernel does not wait for workers that wake late.",
    "best_of > n cannot be streamed; use Complete.",
    "The request continues from the saved states.",
    "Of course the arena never grows.",
    "Equal seeds give the same tokens, and those that wait come later.",
    "word " * 29 + "ends.",
    "First sentence, e.g. this one. " * 10,
]


@pytest.mark.parametrize("text", BAD)
def test_finds(text):
    assert lint_text.faults(text)


@pytest.mark.parametrize("text", GOOD)
def test_leaves_alone(text):
    assert lint_text.faults(text) == []


def test_every_pattern_finds_a_bad_sentence():
    found = {fault for text in BAD for fault, _ in lint_text.faults(text)}
    unused = [what for what, _ in lint_text.PATTERNS if what not in found]
    assert unused == []


def test_markdown_is_read_by_paragraph_item_and_cell():
    source = ("# Title\n\nOne line\nand the next.\n\n- first\n  goes on\n- second\n\n| a | b |\n|---|---|\n\n"
              "```sh\n./dev serve # goes by\n```\n")
    assert [text for _, text in lint_text.markdown_blocks(source) if text.strip("- ")] == [
        "Title", "One line and the next.", "first goes on", "second", " a ", " b "]
    assert [fault for _, _, fault, _ in lint_text.lint("x.md", source)] == ["'goes on' or 'gone on': say 'continues' or "
                                                                          "'resumes'"]


def test_comments_are_read_by_block_and_drawings_are_not():
    source = ("// One line\n// and the next.\n//\n// Two:\n//   - an item\n//     of two lines\n//   - another\n"
              "//     code(x);\nint x = 1;  // trailing\nconst char* url = \"http://goes on\";\n")
    assert [text for _, text in lint_text.comment_blocks(source)] == [
        "One line and the next.", "Two:", "an item of two lines", "another code(x);", "trailing"]


def test_error_strings_are_joined():
    source = ('return absl::InvalidArgumentError(absl::StrCat("--", flag, ": \'", Name(x), "\' is no duration"));\n'
              'const char* other = "this is no error";\n')
    assert [fault for _, _, fault, _ in lint_text.lint("x.cc", source)] == ["'is no <noun>': say 'is not a ...'"]


@pytest.mark.parametrize("ending", ["h", "cc", "inc", "cu", "cuh", "proto", "rs"])
def test_comments_of_all_code_are_read(ending):
    assert [line for _, line, _, _ in lint_text.lint(f"x.{ending}", "int x;\n// A request goes on.\n")] == [2]


def test_log_lines_are_read_without_their_arguments():
    source = 'spdlog::log(level, "the server goes on "\n            "with {} requests", Name("what there is"), 1);\n'
    assert list(lint_text.literal_blocks(source))[0] == (1, "the server goes on with X requests")
    assert [fault for _, _, fault, _ in lint_text.lint("x.cc", source)] == ["'goes on' or 'gone on': say 'continues' or "
                                                                          "'resumes'"]


def test_rust_documentation_is_read():
    source = "//! A crate goes on.\n\n/// A function goes on.\nfn f() {}\n"
    assert [line for _, line, _, _ in lint_text.lint("x.rs", source)] == [1, 3]


def test_comments_and_docstrings_of_python_are_read():
    source = ('#!/usr/bin/env python3\n"""The file.\n\n    a  goes on\n    b  does not\n"""\n'
              'TEXT = "# goes on"  # a text that goes on\n\n\ndef f():\n    """One line\n    and the next."""\n')
    assert list(lint_text.python_blocks(source)) == [
        (2, "The file."), (4, "a  goes on"), (5, "b  does not"), (7, "a text that goes on"),
        (11, "One line and the next.")]
    assert [line for _, line, _, _ in lint_text.lint("x.py", source)] == [4, 7]


@pytest.mark.parametrize("path", ["dev", "tools/dev/x.sh"])
def test_comments_and_printed_texts_of_shell_are_read(path):
    source = ("#!/usr/bin/env bash\n# One line\n# and the next.\nx=${#list[@]}  # trailing\nsay '# goes on'\n"
              "cat <<'EOF'\n./dev x   goes on\n          here\n./dev y   does not\nEOF\necho goes on\n")
    assert list(lint_text.shell_blocks(source)) == [
        (2, "One line and the next."), (4, "trailing"), (7, "./dev x   goes on here"), (9, "./dev y   does not")]
    assert [line for _, line, _, _ in lint_text.lint(path, source)] == [7]


@pytest.mark.parametrize("path", ["dev", "tools/dev/bench.sh", "tools/dev/test.py", "text/crate/src/lib.rs",
                                  "clients/python/src/berth_client/_calls.py"])
def test_scripts_and_the_crate_are_covered(path):
    assert path in lint_text.covered_files()


def test_everything_covered_is_clean():
    found = [f"{path}:{line}: {fault}: {sentence}" for path in lint_text.covered_files()
             for path, line, fault, sentence in lint_text.lint(path, open(os.path.join(lint_text.ROOT, path),
                                                                          encoding="utf-8").read())]
    assert found == []
