"""Each generated document is what its generator prints now."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BIN = os.environ.get("BERTH_BIN", os.path.join(ROOT, "bazel-bin"))
# Document: the program that prints it.
GENERATORS = {
    "docs/flags.md": [os.path.join(BIN, "server/flags_doc")],
    "docs/metrics.md": [os.path.join(BIN, "server/metrics/metrics_doc")],
    "docs/checkpoint-files.md": [sys.executable, "models/checkpoint_files_doc.py"],
    "docs/models.md": [sys.executable, "models/families/models_doc.py"],
}


@pytest.mark.parametrize("document", GENERATORS)
def test_is_up_to_date(document):
    made = subprocess.run(GENERATORS[document], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    with open(os.path.join(ROOT, document), encoding="utf-8") as file:
        assert file.read() == made, f"{document} is stale: ./dev docs writes it"
