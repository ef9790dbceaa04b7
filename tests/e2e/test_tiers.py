"""What is cold moves to host memory and to files, and comes back: after other traffic, after a restart, never as
another model's."""

import os
import random
import struct
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, DidNotStart, generate_request, wait_until  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
GEMMA = os.path.join(ROOT, "models/demo/gemma3-demo")
# The last flag: a machine that computes faster than it copies uses the tiers too.
CHECKS = ["--poison_cache", "--check_integrity", "--max_sequence_tokens=2048", "--arena=12MiB", "--host_tier=64MiB",
          "--always_copy"]


def prompt(length, seed):
    generator = random.Random(seed)
    return [generator.randrange(3, 400) for _ in range(length)]


def complete(server, ids, **fields):
    return server.inference.Complete(generate_request(ids=ids, max_tokens=12, ignore_eos=True, **fields), timeout=300)


def turns(server, seed):
    """A first turn, and the second turn's prompt with what it gives cold."""
    first = prompt(400, seed)
    answer = complete(server, first)
    second = first + list(answer.token_ids) + prompt(20, seed + 1)
    return second, list(complete(server, second, share_prefix=False).token_ids), len(first) + 12 - 1


@pytest.mark.parametrize("model", [DEMO, GEMMA], ids=["falcon_h1", "gemma3"])
def test_a_conversation_comes_back_after_other_traffic_and_after_a_restart(tmp_path, model):
    flags = [*CHECKS, f"--disk_tier={tmp_path}/tier"]
    with BerthServer(model, *flags) as server:
        second, cold, known = turns(server, seed=1)
        for seed in range(100, 160):
            complete(server, prompt(700, seed))
        before = server.load()
        assert sum(pool.evicted_units for pool in before.cache.pools) > 0
        hit = complete(server, second)
        after = server.load()
        assert hit.usage.cached_tokens == known
        assert list(hit.token_ids) == cold
        assert after.tier_hits == before.tier_hits + 1
        assert after.host_tier_bytes + after.host_tier_prefix_bytes <= after.host_tier_limit_bytes == 64 << 20
        assert 0 < after.disk_tier_bytes <= after.disk_tier_limit_bytes
        third, cold, known = turns(server, seed=7)
        server.wait_idle()
    with BerthServer(model, *flags) as server:
        assert server.load().disk_tier_bytes > 0
        hit = complete(server, third)
        assert hit.usage.cached_tokens == known
        assert list(hit.token_ids) == cold
        assert server.load().tier_disk_reads == 1
        again = complete(server, third, cache_salt="another tenant")
        assert again.usage.cached_tokens == 0


def test_what_was_idle_survives_a_kill(tmp_path):
    flags = [*CHECKS, f"--disk_tier={tmp_path}/tier", "--tier_idle=0s"]
    with BerthServer(DEMO, *flags, expect_clean_exit=False) as server:
        second, cold, known = turns(server, seed=3)
        # A file gets its name when it is whole. Its header lists the prefix's tokens.
        tokens = struct.pack(f"<Q{known}i", known, *second[:known])
        wait_until(lambda: any(tokens in path.read_bytes() for path in (tmp_path / "tier").glob("*.prefix")),
                   lambda: f"the prefix's file: {server.load()}")
        server.kill()
    with BerthServer(DEMO, *flags) as server:
        hit = complete(server, second)
        assert hit.usage.cached_tokens == known
        assert list(hit.token_ids) == cold


def test_files_of_another_model_or_cache_are_never_used(tmp_path):
    folder = tmp_path / "tier"
    flags = [*CHECKS, f"--disk_tier={folder}"]
    for other in ([GEMMA], [DEMO, "--dtype=bfloat16"], [DEMO, "--cache_dtype=int8"], [DEMO, "--block_tokens=32"],
                  [DEMO, "--state_checkpoint_dtype=int8"]):
        with BerthServer(DEMO, *flags) as server:
            second, _, _ = turns(server, seed=5)
        assert list(folder.glob("*.prefix"))
        with BerthServer(*other, *flags) as server:
            assert server.load().disk_tier_bytes == 0
            assert not list(folder.glob("*.prefix"))
            assert complete(server, second).usage.cached_tokens == 0


def test_a_folder_has_one_server_at_a_time(tmp_path):
    flags = [*CHECKS, f"--disk_tier={tmp_path}/tier"]
    with BerthServer(DEMO, *flags):
        with pytest.raises(DidNotStart, match="another server uses it"):
            with BerthServer(DEMO, *flags):
                pass


def test_torn_files_cost_a_prefill_and_nothing_else(tmp_path):
    folder = tmp_path / "tier"
    flags = [*CHECKS, f"--disk_tier={folder}"]
    with BerthServer(DEMO, *flags) as server:
        second, cold, _ = turns(server, seed=9)
    for path in folder.glob("*.prefix"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-100] + bytes(100))  # what is read at the start is whole
    with BerthServer(DEMO, *flags) as server:
        assert server.load().disk_tier_bytes > 0
        answer = complete(server, second)
        assert answer.usage.cached_tokens == 0
        assert list(answer.token_ids) == cold
        assert "torn or damaged" in server.log()
