"""--dry_run prints the numbers of a real start, and a server without --model serves the demo model."""

import os
import re
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, SERVER, BerthServer, dry_run, generate_request  # noqa: E402

DEMOS = [os.path.join(ROOT, "models/demo", name) for name in ("falcon_h1-demo", "gemma3-demo")]
FLAGS = ["--device=cpu", "--arena=300MiB", "--packed_weights=none"]


def lines_of_cache(text):
    """The lines about the cache, without what the log puts before them."""
    return re.findall(r"(?:cache group \d+|cache arena|cache|sequences of \d+ tokens): .*", text)


@pytest.mark.parametrize("extra", [[], ["--dtype=bfloat16"], ["--weights=int8"], ["--weights=int4", "--cache_dtype=int8"],
                                   ["--max_sequence_tokens=5000", "--prefill_chunk_tokens=64"],
                                   ["--attention_window=100", "--max_running=3"]], ids=" ".join)
@pytest.mark.parametrize("demo", DEMOS, ids=os.path.basename)
def test_prints_what_a_start_reports(demo, extra):
    printed = dry_run(demo, *FLAGS, *extra)
    with BerthServer(demo, *FLAGS, *extra) as server:
        info = server.model_info()
        log = server.log()
    assert f"weights: {info.weight_bytes} bytes" == re.sub(r"[\d.]+ \w+ \((\d+ bytes)\)", r"\1", printed.splitlines()[1])
    assert f"model {info.name}: {info.model_type}" in printed
    expected = lines_of_cache(printed)
    assert len(expected) == len(info.cache_groups) + 3, printed
    assert lines_of_cache(log) == expected


def test_the_arena_is_the_one_that_a_start_would_choose():
    """Sequences this short need less than any machine's quarter, so the choice does not depend on what else runs."""
    flags = ["--device=cpu", "--max_sequence_tokens=100", "--default_max_tokens=50", "--max_running=2"]
    printed = dry_run(DEMOS[0], *flags)
    with BerthServer(DEMOS[0], *flags) as server:
        arena = server.load().cache.arena_bytes
        assert lines_of_cache(printed) == lines_of_cache(server.log())
    each = int(re.search(r"sequences of 100 tokens: 2 fit at once, each takes .* \((\d+) bytes\)", printed).group(1))
    assert arena == 2 * each


def test_says_that_one_sequence_does_not_fit():
    result = subprocess.run([SERVER, f"--model={DEMOS[0]}", "--device=cpu", "--dry_run", "--max_sequence_tokens=1000000000"],
                            capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and result.stdout.splitlines()[1].startswith("weights: ")
    assert "--arena: one sequence of 1000000000 tokens needs" in result.stderr


def test_writes_nothing(tmp_path):
    dry_run(DEMOS[0], "--device=cpu", f"--packed_weights={tmp_path}", f"--session_dir={tmp_path}/sessions")
    assert list(tmp_path.iterdir()) == []


def test_without_a_model_it_serves_the_demo():
    with BerthServer("") as server:
        assert server.model_info().name == "falcon_h1-demo"
        assert "--model is not set; serving the demo model in " in server.log()
        assert "68" in server.inference.Complete(generate_request(chat="What is 23 + 45?"), timeout=120).text
