"""The workloads of `berth-cli load` against a real server: what is sent, what its cache finds, what the reports say."""

import json
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import BIN, ROOT, BerthServer  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CLI = os.path.join(BIN, "client/berth-cli")
# The keys of a result file of `vllm bench serve --save-result --save-detailed --percentile-metrics=ttft,tpot,itl,e2el`,
# for a model of text, without a ramp-up, probes, metadata or speculative decoding. Source: vllm/benchmarks/serve.py in
# github.com/vllm-project/vllm, commit 009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1.
VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness",
    "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests", "rtfx", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
    "queue_times", "generated_texts", "errors",
    *(f"{statistic}_{latency}_ms" for statistic in ("mean", "median", "std", "p99")
      for latency in ("ttft", "tpot", "itl", "e2el"))}
DETAILS = ["input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
           "errors"]
SEEDS = iter(range(1, 1000))


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO, "--poison_cache", "--check_integrity", "--max_sequence_tokens=2048") as server:
        yield server
        server.wait_idle()


def run(server, *flags, code=0):
    """The report as JSON. Each run has prompts of its own, which the cache does not hold yet."""
    seed = [] if any(flag.startswith("--seed=") for flag in flags) else [f"--seed={next(SEEDS)}"]
    done = subprocess.run([CLI, "load", f"--server={server.address}", "--json_out=-", *seed, *flags], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def conversations(server, history, requests):
    """Two conversations of three turns, one after the other. The report's prompt and cached tokens of one of them."""
    report = run(server, "--turns=3", f"--history={history}", f"--requests={requests}", "--prompt_tokens=fixed:100",
                 "--turn_tokens=fixed:20", "--output_tokens=fixed:8")
    assert report["requests"] == {"ok": requests, "failed": 0, "cancelled": 0, "shortened": 0}
    assert report["run"]["conversations"] == f"3 turns of fixed:20 new tokens, {history}"
    assert report["throughput"]["output_tokens"] == 8 * requests
    return report["throughput"]["prompt_tokens"] / 2, report["throughput"]["cached_tokens"] / 2


GROWN = 100 + 128 + 156
FOUND = 107 + 135  # a turn's prompt and output but its last token, which was never computed


def test_a_growing_conversation_finds_all_that_was_said(server):
    assert conversations(server, "grow", requests=6) == (GROWN, FOUND)


def test_a_change_at_the_front_leaves_little_to_find(server):
    prompt_tokens, cached_tokens = conversations(server, "front", requests=6)
    assert prompt_tokens == GROWN and cached_tokens <= 2 * 16  # what stands before the change


def test_a_stripped_answer_is_computed_again(server):
    prompt_tokens, cached_tokens = conversations(server, "strip", requests=6)
    assert prompt_tokens == 100 + 124 + 148
    # Each prompt but the answer after it. Where the model repeats itself, the half that is left begins like the whole.
    assert 99 + 123 <= cached_tokens <= 104 + 128


def test_requests_between_the_turns_take_nothing_from_the_cache(server):
    assert conversations(server, "side", requests=10) == (GROWN + 2 * 20, FOUND)


def test_prompts_share_their_beginnings(server):
    report = run(server, "--prefix_tokens=300", "--num_prefixes=2", "--prompt_tokens=fixed:20", "--requests=20",
                 "--output_tokens=fixed:2")
    figures = report["throughput"]
    assert figures["prompt_tokens"] == 20 * 320
    # The first request of each beginning computes all, and the second may have to replay up to where it departs.
    assert 16 * 300 <= figures["cached_tokens"] <= 18 * 300
    alone = run(server, "--prompt_tokens=fixed:320", "--requests=4", "--output_tokens=fixed:2")
    assert alone["throughput"]["cached_tokens"] == 0


def test_the_warm_up_is_sent_and_not_counted(server):
    before = server.load()
    report = run(server, "--warmup=5", "--requests=7", "--prompt_tokens=fixed:10", "--output_tokens=fixed:3")
    after = server.load()
    assert report["requests"]["ok"] == 7 and report["throughput"]["output_tokens"] == 21
    assert after.generation_tokens - before.generation_tokens == 12 * 3
    assert after.prompt_tokens - before.prompt_tokens == 12 * 10


MOONCAKE = [
    {"timestamp": 1000, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
    {"timestamp": 1600, "input_length": 700, "output_length": 5, "hash_ids": [1, 3]},
    {"timestamp": 2200, "input_length": 650, "output_length": 6, "hash_ids": [1, 4]},
    {"timestamp": 2800, "input_length": 90, "output_length": 7, "hash_ids": [5]},
]


def test_a_trace_of_mooncakes_form_is_replayed(server, tmp_path):
    trace, result = tmp_path / "trace.jsonl", tmp_path / "vllm.json"
    trace.write_text("".join(json.dumps(line) + "\n" for line in MOONCAKE))
    report = run(server, f"--trace={trace}", "--trace_speed=2", f"--vllm_json_out={result}")
    assert report["run"]["loop"] == "open" and report["requests"]["ok"] == 4
    sent = json.loads(result.read_text())
    assert sent["input_lens"] == [line["input_length"] for line in MOONCAKE]
    assert sent["output_lens"] == [line["output_length"] for line in MOONCAKE]
    intended = [start - late for start, late in zip(sent["start_times"], sent["queue_times"])]
    assert intended == pytest.approx([0, 0.3, 0.6, 0.9], abs=1e-6)


def test_prompts_of_a_trace_share_their_blocks(server, tmp_path):
    """A run for each line, with one seed: a request has ended, and is in the cache, when the next one comes."""
    seed = f"--seed={next(SEEDS)}"
    cached = []
    for line in MOONCAKE:
        trace = tmp_path / "line.jsonl"
        trace.write_text(json.dumps(line) + "\n")
        cached.append(run(server, f"--trace={trace}", seed)["throughput"]["cached_tokens"])
        server.wait_idle()
    # The third request finds the 512 tokens of id 1; the second may have to replay them.
    assert cached[0] == cached[3] == 0 and cached[1] <= 512 == cached[2], cached


def test_the_capacity_of_a_small_server_is_found():
    """Its queue overflows at a high rate. At the lowest it cannot: the seed sends fewer requests than there are places."""
    with BerthServer(DEMO, "--max_running=1", "--max_queue=16") as server:
        report = run(server, "--find_capacity", "--rate=4", "--duration=1s", "--limit_e2e=1h",
                     "--prompt_tokens=fixed:100", "--output_tokens=fixed:200", "--seed=1")
        assert report["throughput"]["cached_tokens"] == 0, "a probe sends what an earlier one sent"
        capacity = report["capacity"]
        assert capacity["outcome"] == "found" and capacity["rate"] >= 4
        assert report["run"]["rate"] == capacity["rate"] and report["requests"]["failed"] == 0
        probes = capacity["probes"]
        assert capacity["rate"] == max(probe["rate"] for probe in probes if probe["held"])
        missed = min(probe["rate"] for probe in probes if not probe["held"])
        assert capacity["rate"] < missed <= capacity["rate"] * 1.05
        server.wait_idle()


def test_a_search_that_finds_no_limit_says_so(server):
    few = run(server, "--find_capacity", "--rate=300000", "--requests=3", "--duration=10s", "--limit_e2e=1h",
              "--output_tokens=fixed:2", code=1)["capacity"]
    assert few["outcome"] == "each_rate_held" and [probe["held"] for probe in few["probes"]] == [True, True]
    none = run(server, "--find_capacity", "--rate=64", "--duration=200ms", "--limit_ttft=1ns",
               "--output_tokens=fixed:2", code=1)["capacity"]
    assert none["outcome"] == "no_rate_held" and none["rate"] == 0


@pytest.fixture(scope="module")
def both(server, tmp_path_factory):
    """The report and the file of --vllm_json_out of one run."""
    path = tmp_path_factory.mktemp("vllm") / "result.json"
    report = run(server, "--requests=12", "--concurrency=3", "--prompt_tokens=uniform:5:60", "--limit_e2e=1h",
                 "--output_tokens=uniform:1:9", f"--vllm_json_out={path}", "--html_out=" + str(path.with_suffix(".html")))
    return report, json.loads(path.read_text())


def test_vllm_json_has_the_keys_of_vllm_bench_serve(both):
    assert set(both[1]) == VLLM_KEYS


def test_vllm_json_has_the_figures_of_the_report(both):
    report, result = both
    assert result["completed"] == report["requests"]["ok"] == result["num_prompts"] == 12
    assert result["total_output_tokens"] == report["throughput"]["output_tokens"] == sum(result["output_lens"])
    assert result["total_input_tokens"] == report["throughput"]["prompt_tokens"] == sum(result["input_lens"])
    assert result["max_concurrency"] == 3 and 1 <= result["max_concurrent_requests"] <= 3
    assert result["request_goodput"] == report["goodput"]["requests_per_second"]
    for name, own in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2el", "e2e")):
        figures = report["latency_seconds"][own]
        for statistic, key in (("mean", "mean"), ("median", "p50"), ("std", "std"), ("p99", "p99")):
            assert result[f"{statistic}_{name}_ms"] == pytest.approx(1000 * figures[key])


def test_vllm_json_has_a_value_for_each_request(both):
    _, result = both
    assert all(len(result[key]) == 12 for key in DETAILS)
    assert [len(gaps) + 1 for gaps in result["itls"]] == result["output_lens"]
    for first, gaps, latency in zip(result["ttfts"], result["itls"], result["latencies"]):
        assert 0 < first and first + sum(gaps) <= latency + 1e-4
    assert result["errors"] == [""] * 12 and min(result["queue_times"]) >= 0
