"""What maskbench.py makes of a program that fails on a schema, or that cannot run at all."""

import os
import pathlib
import sys

import pytest

BENCH = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../bench"))
sys.path[:0] = [BENCH, os.path.join(BENCH, "../tests/testing")]

import maskbench  # noqa: E402

FILES = [pathlib.Path(f"{name}.json") for name in ("a", "b", "c")]


def run(on_b, **options):
    """A program that runs the code `on_b` at the second of three files, and prints a line for each other one."""
    program = (f"import json, os, sys\nfor name in sys.argv[1:]:\n  if name == 'b.json': {on_b}\n"
               "  print(json.dumps({'file': name, 'compile_us': 1}), flush=True)\n")
    return maskbench.run_files(FILES, [sys.executable, "-c", program], 1, **options)


def test_a_crash_is_named_and_fails_the_bench():
    lines = run("os.abort()")
    assert [line["file"] for line in lines] == ["a.json", "b.json", "c.json"]
    assert lines[1]["refused"].startswith("CRASH -6")
    with pytest.raises(SystemExit, match="crashed on 1 schemas, such as b.json"):
        maskbench.check("Berth", lines)
    maskbench.check("a peer", lines, may_crash=True)


def test_a_program_that_cannot_run_fails_the_bench():
    with pytest.raises(SystemExit, match="ended with 3 after 1 of 3 files"):
        run("sys.exit(3)")
    assert run("sys.exit(3)", fails_by_exit=True)[1]["refused"].startswith("CRASH 3")
    with pytest.raises(SystemExit, match="ended with 0 after 1 of 3 files"):
        run("sys.exit(0)")


def test_a_bench_without_a_schema_that_passes_fails():
    with pytest.raises(SystemExit, match="passes no schema"):
        maskbench.check("Berth", [{"file": "a", "refused": "no"}, {"file": "b", "wrong": [{"valid": True}]}])
