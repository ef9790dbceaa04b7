"""Parts A1 and A2 of check.py: what the device computes is what the CPU computes. A1 asks servers and the operations'
tests. A2 compares with transformers, and has compute-sanitizer watch the tests."""

import concurrent.futures
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import traceback

from stages import (BIN, DEMO_MODELS, DEVICE_TESTS, ROOT, Stage, find_tool, library_path, program_environment, reason_of,
                    run_program, watched)

# The demo models are trained: their best token mostly leads by far. Where the CPU's two best logprobs are closer than
# this, either may come: float32 sums in another order differ by 1e-5.
TIE_MARGIN = 1e-3
# Quantised numbers may round the other way, which moves logprobs by more.
QUANTISED_TIE_MARGIN = 0.2
MAX_TIE_SHARE = 0.1
LOGPROB_TOLERANCE = 1e-3
CHECKS = ["--poison_cache", "--check_integrity", "--arena=64MiB", "--max_sequence_tokens=1024", "--dtype=float32"]
# Tests that run other kernels than CUDA's.
CPU_TESTS = "*/avx*:*/amx*:*/baseline*"
# What compute-sanitizer watches of each program: every kernel in its smallest sizes. decode_graphs_test has none, as
# torch records no graph while each tensor is an allocation of its own.
WATCHED_TESTS = ["*CarriesItsState*", "*Norm*", "*Rotary*", "*Activation*", "*TheReference*", "*Encoder*", "*Cross*",
                 "CheckpointConverterTest.*", "*CudaMatMulTest*", "*SampleStepTest*", "TensorStorageTest.*"]
NOT_WATCHED = ["tests/models/runner/device_probe_test", "tests/models/runner/decode_graphs_test"]
# That the programs are built with.
TORCH_VERSION = "2.11.0"
# The part of its time after which a stage begins no further case of parity. One that compares all regimes starts some 20
# servers.
BEGINS_UNTIL = 0.6
# One case of each kind of cache: the parity regimes that the others do not go through.
REGIME_CASES = ["llama", "gemma3_text", "mamba2", "falcon_h1", "qwen3_next", "bart"]


def machine(setup):
    """What the machine is, that every program finds its libraries, and the ceilings that part B compares with."""
    # Before all else: they must fit the machine's protobuf and gRPC.
    from berth_server import api

    api()
    import torch

    figures = [f"torch {torch.__version__}"]
    # Others may treat the memory that a graph keeps in another way.
    assert torch.__version__.split("+")[0] == TORCH_VERSION, f"torch is {torch.__version__}, not {TORCH_VERSION}"
    programs = [BIN / "server/berth-server", BIN / "client/berth-cli", *(BIN / test for test in DEVICE_TESTS)]
    for program in programs:
        assert program.exists(), f"there is no {program}"
        found = subprocess.run(["ldd", program], capture_output=True, text=True, check=True,
                               env=program_environment()).stdout
        missing = re.findall(r"(\S+) => not found", found)
        assert not missing, f"{program.name} finds no {', '.join(missing)} in {library_path()}"
    version = run_program(BIN / "server/berth-server", "--version").split()[-1]
    figures.insert(0, f"berth {version}")
    if setup.on_gpu:
        if shutil.which("nvidia-smi"):
            run_program("nvidia-smi", check=False)
        assert torch.cuda.is_available(), "no GPU: torch finds none"
        free, total = torch.cuda.mem_get_info(setup.device)
        figures.append(f"{torch.cuda.get_device_name(setup.device)}, {free >> 20} of {total >> 20} MiB free")
    ceilings = measure_ceilings(setup)
    (setup.out / "ceilings.json").write_text(json.dumps(ceilings))
    began = time.monotonic()
    with server_of(DEMO_MODELS[0], CHECKS, setup.device):
        start = time.monotonic() - began
    return ", ".join(figures + [f"copy {ceilings['gb_s']:.0f} GB/s, bf16 product {ceilings['tflop_s']:.3g} TFLOP/s, "
                                f"start of a server {start:.1f} s"])


def measure_ceilings(setup):
    """The rate of a copy, bytes read and written, and of a large product."""
    import torch

    device = setup.device

    def seconds(work, times):
        work()
        if setup.on_gpu:
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(times):
            work()
        if setup.on_gpu:
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / times

    size = setup.size(2 << 30, 16 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = seconds(lambda: target.copy_(source), 10)
    n = setup.size(8192, 256)
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    product = seconds(lambda: a @ b, 10)
    return {"gb_s": 2 * size / copied / 1e9, "tflop_s": 2 * n**3 / product / 1e12}


def probe(setup):
    """The smallest steps, one by one: the libraries load, a kernel runs, a graph is recorded and launched."""
    setup.need_gpu("it loads CUDA's libraries")
    log = run_program(BIN / "tests/models/runner/device_probe_test", BERTH_TEST_DEVICE=setup.device)
    assert "SKIPPED" not in log, "a probe was skipped"
    return f"{count_passed(log)} probes"


def count_passed(log):
    return sum(map(int, re.findall(r"PASSED.* (\d+) test", log)))


def problem_of(code, log, may_be_empty):
    """What is wrong with a program of tests; "" if all of them passed."""
    if code != 0:
        names = re.findall(r"^\[  FAILED  \] (\S+?),? .*ms\)", log, re.MULTILINE)[:3]
        return ", ".join(names) or f"ended with {code}"
    skipped = re.findall(r"^\[  SKIPPED \] (\S+)", log, re.MULTILINE)
    if skipped:
        return f"{skipped[0]} was skipped"
    return "" if may_be_empty or count_passed(log) else "ran no test"


def device_tests(setup, *tool, only="*"):
    """Runs the tests of the operations on the device, four at a time; on the CPU, on the emulated kernels. Returns how
    many passed, of how many programs, and their logs. A test that is skipped fails. So does a program without one,
    except on the CPU, which chooses among them."""
    may_be_empty = not setup.on_gpu
    if setup.on_gpu:
        # Each tensor in an allocation of its own, so that the sanitizer sees its ends.
        environment = {"BERTH_TEST_DEVICE": setup.device} | ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool else {})
    else:
        environment, only = {}, "*emulated*"

    def run(test):
        command = [str(BIN / test), f"--gtest_filter={only}-{CPU_TESTS}"]
        known = program_environment(**environment)
        if tool:
            command, known = watched(tool, *command, **environment), None
        done = subprocess.run(command, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=known)
        return test, done.returncode, done.stdout

    tests = [test for test in DEVICE_TESTS if test not in (NOT_WATCHED if tool else NOT_WATCHED[:1])]
    tests = tests[: setup.size(len(tests), 2)]
    count, failed, logs = 0, [], []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for test, code, log in pool.map(run, tests):
            print(f"=== {test}: {code}\n{log}", flush=True)
            logs.append(log)
            count += count_passed(log)
            if problem := problem_of(code, log, may_be_empty):
                failed.append(f"{pathlib.Path(test).name}: {problem}")
    assert not failed, "; ".join(failed)
    assert count > 0, "no test ran"
    return f"{count} tests of {len(tests)} programs" + ("" if setup.on_gpu else ", on the emulated kernels"), logs


def operations(setup):
    return device_tests(setup)[0]


def sanitizer(tool, informative=False):
    """A stage that has compute-sanitizer watch the operations' tests, in their smallest sizes. What an informative one
    finds is told, and fails nothing."""

    def run(setup):
        setup.need_gpu("compute-sanitizer watches a GPU")
        command = [find_tool("compute-sanitizer"), f"--tool={tool}", "--target-processes=all",
                   f"--error-exitcode={0 if informative else 9}"]
        figures, logs = device_tests(setup, *command, only=":".join(WATCHED_TESTS))
        found = sum(int(count) for log in logs for count in re.findall(r"ERROR SUMMARY: (\d+) error", log))
        return figures + (f"; {found} reports, which may be of the libraries' own copies" if informative else "")

    run.__name__ = tool
    return run


# The servers.


def server_of(model, flags, device):
    from berth_server import BerthServer

    return BerthServer(str(model), f"--device={device}", "--log_level=warning", *flags)


def questions(setup):
    """Greedy requests in chats that the demo models were trained to answer."""
    from berth_server import generate_request

    listed = [json.loads((ROOT / f"models/demo/heldout_{kind}.json").read_text()) for kind in ("additions", "records")]
    turns = [turn for pair in zip(*listed) for turn in pair][: setup.size(48, 6)]
    return [lambda text=turn["question"], **fields: generate_request(chat=text, max_tokens=48, **fields)
            for turn in turns]


def ask(server, requests):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda request: server.inference.Complete(request, timeout=600), requests))


def compare(expected, got, margin):
    """Tokens against the CPU's. Returns the number of ties. expected: responses with two logprobs a token."""
    ties = 0
    for i, (wanted, response) in enumerate(zip(expected, got, strict=True)):
        pairs = list(zip(wanted.token_ids, response.token_ids))
        at = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        if at is None:
            assert len(wanted.token_ids) == len(response.token_ids), f"request {i}: another length"
            continue
        top = wanted.logprobs[at].top
        lead = top[0].logprob - top[1].logprob
        assert lead < margin, f"request {i}: token {at} is {pairs[at][1]}, expected {pairs[at][0]}, which leads by {lead:.2e}"
        ties += 1
    assert ties <= max(1, MAX_TIE_SHARE * len(expected)), f"{ties} ties among {len(expected)} requests"
    return ties


def like_cpu(setup, variants, margin):
    """Asks each demo model on the CPU and on the device. variants: {name: (flags of both, flags of the device)}."""
    rows = ties = launches = 0
    failed = []
    requests = questions(setup)
    for model in DEMO_MODELS[: setup.size(2, 1)]:
        expected = {}
        for name, (flags, device_flags) in variants.items():
            if tuple(flags) not in expected:
                with server_of(model, [*CHECKS, *flags], "cpu") as server:
                    expected[tuple(flags)] = ask(server, [request(logprobs=2) for request in requests])
            wanted = expected[tuple(flags)]
            try:
                with server_of(model, [*CHECKS, *flags, *(device_flags if setup.on_gpu else [])], setup.device) as server:
                    got = ask(server, [request() for request in requests])
                    before = server.load()
                    again = ask(server, [request() for request in requests])
                    load = server.wait_idle()
                    ties += compare(wanted, got, margin) + compare(wanted, again, margin)
                    if setup.on_gpu:
                        check_device(server, before, load, graphs="--cuda_graphs=false" not in device_flags)
                rows += len(got) + len(again)
                launches += load.graph_launches
            except Exception as error:  # the other settings say more of the cause
                traceback.print_exc(file=sys.stdout)
                failed.append(f"{model.name}, {name}: {reason_of(error)}")
    assert not failed, "; ".join(failed)
    return f"{rows} answers of {len(variants)} settings, {ties} ties, {launches} graph launches"


def check_device(server, before, after, graphs):
    """After the warm-up nothing is allocated, and decode steps are graphs."""
    assert server.model_info().device == "cuda", server.model_info().device
    assert after.graph_refusals == 0, f"{after.graph_refusals} refused graphs: {server.log()}"
    assert (after.graph_launches > before.graph_launches) == graphs, f"{after.graph_launches} launches of graphs"
    grown = after.device_allocations - before.device_allocations
    assert grown == 0, f"{grown} allocations after the warm-up"


def tokens(setup):
    return like_cpu(setup, {"graphs": ([], []), "no graphs": ([], ["--cuda_graphs=false"]),
                            "chunks": ([], ["--prefill_chunk_tokens=7", "--compact_bytes_per_step=1KiB"])}, TIE_MARGIN)


def quantised(setup):
    return like_cpu(setup, {"int8 cache": (["--cache_dtype=int8"], []), "int4 cache": (["--cache_dtype=int4"], []),
                            "int8 weights": (["--weights=int8"], [])}, QUANTISED_TIE_MARGIN)


def preemption(setup):
    """Sequences that are swapped out to host memory and come back, in an arena that is too small for all."""
    from berth_server import generate_request

    length, count, done = 300, setup.size(16, 8), []
    flags = [flag for flag in CHECKS if not flag.startswith(("--arena", "--max_sequence"))] + ["--max_sequence_tokens=512"]
    requests = [lambda i=i, **fields: generate_request(ids=[3 + (i * 37 + n * 11) % 400 for n in range(60)],
                                                       max_tokens=length, ignore_eos=True, share_prefix=False, **fields)
                for i in range(count)]
    for model in DEMO_MODELS[: setup.size(2, 1)]:
        with server_of(model, [*flags, "--arena=64MiB"], "cpu") as server:
            expected = ask(server, [request(logprobs=2) for request in requests])
            groups = server.model_info().cache_groups
        sequence = sum(group.bytes_per_sequence + group.bytes_per_token * 512 for group in groups)
        arena = max(4 << 20, int(2.5 * sequence) >> 20 << 20)
        for arena in (arena, arena // 2, arena * 3 // 4):
            with server_of(model, [*flags, f"--arena={arena}", "--host_tier=1GiB"], setup.device) as server:
                got = ask(server, [request() for request in requests])
                load = server.wait_idle()
            ties = compare(expected, got, TIE_MARGIN)
            if load.swap_outs:
                break
        assert load.swap_outs, f"{model.name}: nothing was swapped out with arenas of {arena} bytes"
        done.append(f"{model.name}: {load.swap_outs} swap-outs, {ties} ties")
    return "; ".join(done)


def sampling(setup):
    """Equal seeds draw equal tokens, whatever else is asked of the sampler; logprobs are the CPU's."""
    asked = [{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.5}]
    requests = questions(setup)
    worst = same = rows = 0
    for model in DEMO_MODELS[: setup.size(2, 1)]:
        answers = []
        for device in ("cpu", setup.device):
            with server_of(model, CHECKS, device) as server:
                drawn = []
                for i, request in enumerate(requests):
                    drawn.append(request(temperature=0.9))
                    drawn[-1].sampling.seed = i
                    for field, value in asked[i % len(asked)].items():
                        setattr(drawn[-1].sampling, field, value)
                answers.append((ask(server, drawn), ask(server, [request(logprobs=20) for request in requests])))
        (drawn, exact), (drawn_there, exact_there) = answers
        rows += len(drawn)
        same += sum(a.token_ids == b.token_ids for a, b in zip(drawn, drawn_there))
        for a, b in zip(exact, exact_there):
            for x, y in zip(a.logprobs, b.logprobs):
                if x.token_id != y.token_id:
                    break
                there = {entry.token_id: entry.logprob for entry in y.top}
                worst = max([worst, *(abs(entry.logprob - there[entry.token_id]) for entry in x.top
                                      if entry.token_id in there and math.isfinite(entry.logprob))])
    assert worst <= LOGPROB_TOLERANCE, f"a logprob is off by {worst:.1e}"
    # A draw near the border of two tokens may fall to the other.
    assert same >= 0.9 * rows, f"only {same} of {rows} sampled outputs are the CPU's"
    return f"{same} of {rows} sampled outputs equal, logprobs within {worst:.1e}"


def run_parity(setup, names, *flags):
    """tools/parity/run.py over the cases, in several processes. Late in the stage's time it begins no further case, and
    the stage names those that are left."""
    workers = min(len(names), setup.size(max(2, (os.cpu_count() or 2) // 2), 2))
    if setup.on_gpu:
        flags = [*flags, f"--seconds={BEGINS_UNTIL * setup.seconds:.0f}"]

    def run(n):
        command = [sys.executable, str(ROOT / "tools/parity/run.py"), f"--device={setup.device}", *flags, *names[n::workers]]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    rows = ties = misses = 0
    failed, left = [], []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for code, log in pool.map(run, range(workers)):
            print(log, flush=True)
            left += re.findall(r"^NOT REACHED (\S+)", log, re.MULTILINE)
            counted = re.findall(r"^(\d+) comparisons, (\d+) ties.*, (\d+) misses", log, re.MULTILINE)
            if counted:
                rows, ties, misses = (a + int(b) for a, b in zip((rows, ties, misses), counted[-1]))
            if code != 0:
                failed += re.findall(r"^MISS (.*)", log, re.MULTILINE)[:3] or log.strip().splitlines()[-1:]
    assert not failed, f"{misses} misses of {rows} comparisons: " + "; ".join(failed)
    assert len(left) < len(names), "there was time for no checkpoint"
    return (f"{len(names) - len(left)} checkpoints, {rows} comparisons, {ties} ties" +
            (f"; no time for {', '.join(left)}" if left else ""))


def parity(setup):
    """Every family against transformers: tokens, logprobs, company, chunks, bfloat16."""
    from cases import CASES

    return run_parity(setup, setup.size(list(CASES), ["llama"]), "--brief")


def regimes(setup):
    """All ways through the cache, on one case of each kind of it."""
    return run_parity(setup, setup.size(REGIME_CASES, ["mamba2-tied"]), *setup.size([], ["--brief"]))


TOKENS = [Stage(machine, 60), Stage(probe, 60), Stage(operations, 120, alone=False), Stage(tokens, 180, alone=False),
          Stage(quantised, 180, alone=False), Stage(preemption, 120, alone=False), Stage(sampling, 90, alone=False)]
WATCHED = [Stage(machine, 60), Stage(parity, 240, alone=False), Stage(sanitizer("memcheck"), 150, alone=False),
           Stage(sanitizer("racecheck"), 150, alone=False), Stage(regimes, 200, alone=False),
           Stage(sanitizer("initcheck", informative=True), 120, alone=False),
           Stage(sanitizer("synccheck"), 120, alone=False)]
