"""Part C of check.py: many requests of all kinds, and what users meet rarely."""

import concurrent.futures
import os
import random
import re
import signal
import subprocess
import sys
import time

from correctness import CHECKS, TIE_MARGIN, compare, machine, ask, questions, run_parity, server_of
from stages import BIN, DEMO_MODELS, ROOT, Stage, run_program

# Experts and hybrids in CUDA graphs, encoders, and layer norms, through all regimes.
CASES = ["mixtral", "nemotron_h", "gpt_oss", "t5", "cohere2", "jamba", "recurrent_gemma", "gemma3n_text"]


def mixed(setup):
    """Requests of all kinds at once. The greedy ones must answer as on the CPU; nothing may be left behind."""
    requests = questions(setup)
    done = {}
    for model in DEMO_MODELS[: setup.size(2, 1)]:
        with server_of(model, CHECKS, "cpu") as server:
            expected = ask(server, [request(logprobs=2) for request in requests])
        flags = [*CHECKS, "--session_dir=" + str(setup.out / f"sessions-{model.name}-{time.time_ns()}"),
                 "--host_tier=64MiB", "--crop_every=37"]
        with server_of(model, flags, setup.device) as server:
            deadline = time.monotonic() + setup.size(60, 4)

            def one(n):
                if time.monotonic() > deadline:
                    return None, None
                kind = ["greedy", "sampled", "logprobs", "several", "beams", "cancelled", "session"][n % 7]
                i = random.Random(n).randrange(len(requests))
                return kind, play(server, kind, requests[i], expected[i], n)

            with concurrent.futures.ThreadPoolExecutor(setup.size(48, 8)) as pool:
                for kind, ties in pool.map(one, range(setup.size(4000, 60))):
                    if kind is not None:
                        done[kind] = done.get(kind, 0) + 1
                        done["ties"] = done.get("ties", 0) + (ties or 0)
            load = server.wait_idle()
            assert load.graph_refusals == 0, f"{load.graph_refusals} refused graphs"
    ties = done.pop("ties")
    assert ties <= max(1, 0.05 * done["greedy"]), f"{ties} ties"
    return ", ".join(f"{count} {kind}" for kind, count in sorted(done.items())) + f", {ties} ties"


def play(server, kind, request, expected, n):
    """Sends one request of the kind. Returns the ties of a greedy one."""
    fields = {"sampled": dict(temperature=0.9), "logprobs": dict(logprobs=5), "several": dict(n=3, temperature=1.0),
              "session": dict(session_id=f"s{n}")}.get(kind, {})
    asked = request(**fields)
    asked.sampling.seed = n
    if kind == "sampled":
        asked.sampling.top_p = 0.9
    if kind == "beams":
        asked.beam_search.num_beams = 3
    if kind == "cancelled":
        call = server.inference.Generate(asked, timeout=600)
        next(call)
        call.cancel()
        return 0
    response = server.inference.Complete(asked, timeout=600)
    return compare([expected], [response], TIE_MARGIN) if kind in ("greedy", "session") else 0


def odd_arenas(setup):
    """An arena that is too large, or too small for one sequence, is refused in a line that names it."""
    from berth_server import DidNotStart

    said = []
    for size in ("64KiB", "100TiB"):
        flags = [flag for flag in CHECKS if not flag.startswith("--arena")] + [f"--arena={size}"]
        try:
            with server_of(DEMO_MODELS[0], flags, setup.device):
                raise AssertionError(f"--arena={size} was taken")
        except DidNotStart as error:
            lines = [line for line in str(error).splitlines() if "arena" in line]
            assert lines, f"--arena={size}: {error}"
            said.append(lines[-1].split("berth-server: ")[-1][:90])
    return "; ".join(said)


def drain(setup):
    """SIGTERM lets the streams end; the server then exits with 0."""
    from berth_server import generate_request

    streams, tokens = setup.size(32, 4), setup.size(400, 60)
    with server_of(DEMO_MODELS[0], CHECKS, setup.device) as server:
        calls = [server.inference.Generate(generate_request(chat="Tell me a story about a fox.", max_tokens=tokens,
                                                            ignore_eos=True), timeout=600) for _ in range(streams)]
        counts = [len(next(call).token_ids) for call in calls]
        server.process.send_signal(signal.SIGTERM)
        counts = [count + sum(len(message.token_ids) for message in call) for count, call in zip(counts, calls)]
        assert counts == [tokens] * streams, counts
        assert server.process.wait(timeout=300) == 0
    return f"{streams} streams of {tokens} tokens ended whole"


def end_to_end(setup):
    """The end-to-end tests that compare tokens: held-out questions, prefixes, tiers."""
    tests = ["test_demo.py", "test_prefix.py", "test_tiers.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
               *(str(ROOT / "tests/e2e" / test) for test in tests[: setup.size(3, 1)])]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          env={**os.environ, "BERTH_TEST_FLAGS": f"--device={setup.device} --arena=64MiB"})
    print(done.stdout)
    assert done.returncode == 0, "; ".join(re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)[:3]) or "pytest failed"
    return done.stdout.strip().splitlines()[-1].strip("= ")


def steady(setup):
    """A load of ragged requests for a while: no error, no memory taken after the warm-up."""
    with server_of(DEMO_MODELS[1], CHECKS, setup.device) as server:
        rates = []
        for _ in range(2):
            before, began = server.load(), time.monotonic()
            run_program(BIN / "client/berth-cli", "load", f"--server={server.address}", "--concurrency=48",
                        f"--duration={setup.size(30, 2)}s", "--prompt_tokens=lognormal:100:1:400",
                        "--output_tokens=lognormal:80:1:300")
            after = server.wait_idle()
            rates.append((after.generation_tokens - before.generation_tokens) / (time.monotonic() - began))
        assert after.device_allocations == before.device_allocations, "memory was taken after the first half"
    return f"{rates[0]:.0f}, then {rates[1]:.0f} tokens/s; {after.preemptions} preemptions"


def regimes(setup):
    return run_parity(setup, setup.size(CASES, ["t5"]), *setup.size([], ["--brief"]))


STAGES = [Stage(machine, 60), Stage(regimes, 300, alone=False), Stage(mixed, 200, alone=False),
          Stage(end_to_end, 200, alone=False), Stage(odd_arenas, 60, alone=False), Stage(drain, 60, alone=False),
          Stage(steady, 120, alone=False)]
