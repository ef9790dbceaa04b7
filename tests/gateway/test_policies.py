"""bench/gateway_bench.py on a short trace: cache_aware keeps conversations on their server. No time is asserted."""

import os
import subprocess
import sys

from gateway_server import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))
import gateway_bench  # noqa: E402


def test_the_bench_starts_as_a_program(tmp_path):
    printed = subprocess.run([sys.executable, gateway_bench.__file__, "--help"], cwd=tmp_path, check=True, text=True,
                             capture_output=True).stdout
    assert printed.startswith("usage: gateway_bench.py ")


def test_cache_aware_routing_hits_more_than_round_robin():
    arguments = gateway_bench.parse(["--rounds=1", "--conversations=3", "--clients=1", "--turns=4"])
    figures = gateway_bench.measure(arguments)
    aware, round_robin = (figures[policy] for policy in ("cache_aware", "round_robin"))
    assert len(aware.turns) == len(round_robin.turns) == 3 * 3
    assert aware.hit_share() > round_robin.hit_share() > 0
    assert aware.hit_share() > 0.6
    assert aware.load_hit_share() > round_robin.load_hit_share() > 0
    assert all(turn.ttft > 0 for turn in aware.turns + round_robin.turns)
