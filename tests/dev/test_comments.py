"""A long source file explains its algorithm in a comment of at least two lines, at its head or where the code stands."""

import re

import pytest
from sources import read, tracked

LINES = 150
SOURCES = (".cc", ".cu", ".cuh", ".inc", ".rs", ".py")
# Lists without an algorithm.
LISTS = {
    "client/load/options.cc": "the flags of the load test, and rules about two of them",
    "clients/python/src/berth_client/_descriptors.py": "generated: the descriptors of proto/",
    "server/config.cc": "the flags of the server, and rules about two of them",
    "server/metrics/load_table.cc": "a line for each metric that the engine counts",
}
# Files that should have such a comment. Some headers have one in their place. This list may only become shorter.
LACKING = {
    "cache/prefix_mirror.cc", "client/load/load.cc", "client/load/report.cc", "client/load/runner.cc",
    "client/load/workload.cc", "client/request_flags.cc", "client/trace.cc", "models/checkpoint/json_config.cc",
    "models/checkpoint/weight_loader.cc",
    "models/families/transformer.cc", "models/ops/elementwise/elementwise.cc", "models/ops/matmul/packed_weights.cc",
    "models/ops/paged_attention/reference.cc", "models/sampling/device_sampler.cc", "models/sampling/row_ops.cc",
    "models/step/step_batch.cc", "scheduler/engine.cc", "server/api/control_service.cc",
    "server/auth/certificate_files.cc", "server/auth/credentials.cc", "server/auth/server_credentials.cc",
    "server/metrics/metrics.cc", "server/storage/disk_tier.cc",
    "server/storage/session_store.cc", "server/admission/tenants.cc", "server/vllm/messages.cc",
    "text/grammar.cc",
}


def explains(path, text):
    """Whether a comment or a docstring has two lines or more."""
    if not path.endswith(".py"):
        return re.search(r"^[ \t]*//.*\n[ \t]*//", text, re.M) is not None
    docstrings = re.findall(r'^[ \t]*"""(.*?)"""', text, re.M | re.S)
    return any("\n" in text.strip() for text in docstrings) or re.search(r"^[ \t]*#.*\n[ \t]*#", text, re.M) is not None


def lacks(path, text):
    return text.count("\n") > LINES and not explains(path, text)


def test_long_sources_explain_their_algorithm():
    sources = [path for path in tracked() if path.endswith(SOURCES) and not path.startswith("tests/")]
    assert len(sources) > 300
    found = {path for path in sources if lacks(path, read(path))}
    assert found - LISTS.keys() - LACKING == set()
    assert (LISTS.keys() | LACKING) - found == set(), "these need no exception any more"


@pytest.mark.parametrize("path, comment, explained", [
    ("a.cc", "// One line.\nint a;\n// Another.\n", False), ("a.cc", "  // One line,\n  // and a second.\n", True),
    ("a.cc", "int a;  // One line.\n// Another.\n", False), ("a.rs", "//! One.\n//! Two.\n", True),
    ("a.py", '"""One line."""\n# Another.\n', False), ("a.py", '"""One line.\n\nAnother.\n"""\n', True),
    ("a.py", "    # One line,\n    # and a second.\n", True), ("a.py", 'a = """\nb\n"""\n', False),
])
def test_comments_are_read(path, comment, explained):
    assert explains(path, comment) == explained
    assert lacks(path, comment + "\n" * LINES) != explained
    assert not lacks(path, "\n" * LINES)
