"""Compares the running server with transformers: every case in every regime. `./dev parity` runs it.

With --first, as `./dev test` has it, the cases of cases.ONE_OF_EACH go through every regime, and no others run.

With --quick, an architecture's first case goes through every regime, its others through those of run_quick, which are
about the model and not about the cache.

With --brief, every case goes through those.

Greedy tokens must be equal. Where they part, the oracle's own margin between its two best logits decides. Below
TIE_MARGIN it is a tie: it is counted and printed, and the rest of that output is not compared. Else it is a miss. Exits
1 on any miss, and when there are more ties than MAX_TIE_SHARE.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/testing"))

import embedded  # noqa: E402
import forked as forked_oracle  # noqa: E402
import oracle  # noqa: E402
from berth_server import BerthServer  # noqa: E402
from cases import CASES, ONE_OF_EACH  # noqa: E402
from comparison import BASE_FLAGS, TIE_MARGIN, Outcome, base_flags  # noqa: E402
from quantised import quantised, quantised_checkpoints  # noqa: E402
from regimes import (alone, bf16, bits, forked, hit, logits, predicted, preempted, prompt_logprobs, saved,  # noqa: E402
                     together)

MAX_TIE_SHARE = 0.05
REGIMES = ["alone", "logits", "concurrent", "chunk 1", "chunk 7", "preempted", "swapped", "saved", "cropped", "hit",
           "drafted", "forked", "bits", "bf16", "quantised", "dry run"]


def is_first(name):
    """Whether the case is its architecture's first."""
    return name == next(other for other, case in CASES.items() if case.config == CASES[name].config)


def run_quick(name):
    folder, answers, arrays = oracle.load(name)
    outcomes = {regime: Outcome() for regime in REGIMES}
    base = base_flags(name)
    with BerthServer(folder, *base, "--arena=64MiB", "--prefill_chunk_tokens=7") as server:
        predicted(server, folder, [*base, "--arena=64MiB"], outcomes["dry run"])
        alone(server, answers, outcomes["alone"])
        logits(server, answers, arrays, outcomes["logits"])
        prompt_logprobs(name, server, answers, arrays, outcomes["logits"])
        embedded.compare(name, server, folder, answers, outcomes["logits"])
        together(server, answers, outcomes["chunk 7"])
    with BerthServer(folder / "bf16", *base, "--arena=64MiB") as server:
        predicted(server, folder / "bf16", [*base, "--arena=64MiB"], outcomes["dry run"])
        bf16(server, answers, arrays, outcomes["bf16"])
    return outcomes


def shares_prefixes(name, groups):
    """Not where a token's keys depend on the sequence's length too, nor behind an encoder."""
    return not name.endswith(("-dynamic", "-longrope")) and all(group.kind != "cross" for group in groups)


def has_keys(groups):
    """Whether a sequence has keys and values, not states alone."""
    return any(group.bytes_per_token for group in groups)


def run_case(name, device):
    folder, answers, arrays = oracle.load(name)
    beams = forked_oracle.load(name, folder, answers)
    outcomes = {regime: Outcome() for regime in REGIMES}
    base = base_flags(name)
    with BerthServer(folder, *base, "--arena=64MiB", "--prefill_chunk_tokens=64") as server:
        groups = server.model_info().cache_groups
        predicted(server, folder, [*base, "--arena=64MiB"], outcomes["dry run"])
        alone(server, answers, outcomes["alone"])
        logits(server, answers, arrays, outcomes["logits"])
        prompt_logprobs(name, server, answers, arrays, outcomes["logits"])
        embedded.compare(name, server, folder, answers, outcomes["logits"])
        alone(server, answers, outcomes["drafted"], draft_tokens=8)
        together(server, answers, outcomes["concurrent"])
        if shares_prefixes(name, groups):
            hit(server, answers, outcomes["hit"], prompt_dependent=name.startswith(("nemotron_h", "zamba2")))
        forked(server, answers, beams, outcomes["forked"])
    for chunk in (1, 7):
        flags = [*base, "--arena=64MiB", f"--prefill_chunk_tokens={chunk}"]
        with BerthServer(folder, *flags) as server:
            together(server, answers, outcomes[f"chunk {chunk}"])
    with BerthServer(folder, *base, "--arena=64MiB", "--prefill_chunk_tokens=64", "--crop_every=9") as server:
        together(server, answers, outcomes["cropped"])
    preempted(folder, base, groups, answers, outcomes["preempted"], outcomes["swapped"])
    if device == "cpu":  # on a GPU, the libraries choose a product's kernel by its number of rows
        bits(name, folder, base, answers, outcomes["bits"])
    saved(folder, base, answers, outcomes["saved"])
    with BerthServer(folder / "bf16", *base, "--arena=64MiB") as server:
        predicted(server, folder / "bf16", [*base, "--arena=64MiB"], outcomes["dry run"])
        bf16_error = bf16(server, answers, arrays, outcomes["bf16"])
    if has_keys(groups):
        quantised(name, folder, base, answers, arrays, bf16_error, outcomes["quantised"])
    if any(group.kind == "recurrent" for group in groups):
        quantised_checkpoints(folder, base, answers, outcomes["quantised"])
    return outcomes


def run_one(name, quick, device):
    """What came of one case, by regime. Its fault is a miss, and ends no other case."""
    try:
        return run_quick(name) if quick else run_case(name, device)
    except Exception:  # noqa: BLE001
        outcomes = {regime: Outcome() for regime in REGIMES}
        outcomes["alone"].miss(traceback.format_exc())
        return outcomes


class Table:
    """Prints a row for each case, and the sum at the end."""

    def __init__(self, log):
        self.log = open(log, "w", encoding="utf-8") if log else None  # noqa: SIM115
        self.rows = self.ties = self.misses = 0
        self.missed = []
        self.print(f"{'case':22}" + "".join(f"{regime:>14}" for regime in REGIMES))

    def print(self, line):
        for file in (sys.stdout, self.log):
            if file:
                print(line, file=file, flush=True)

    def add(self, name, outcomes):
        self.print(f"{name:22}" + "".join(f"{outcomes[regime].cell():>14}" for regime in REGIMES))
        for regime, outcome in outcomes.items():
            self.rows, self.ties, self.misses = (self.rows + outcome.rows, self.ties + outcome.ties,
                                                 self.misses + outcome.misses)
            for note in outcome.notes[:4]:
                self.print(f"    {regime}: {note}")
            if outcome.misses:
                self.missed += [f"{name}, {regime}: {note}" for note in outcome.notes if not note.startswith("tie: ")][:1]

    def end(self):
        self.print(f"{self.rows} comparisons, {self.ties} ties (margin below {TIE_MARGIN}), {self.misses} misses")
        for note in self.missed:  # again, where the end of a log shows them
            self.print(f"MISS {note}")
        return self.misses > 0 or self.ties > MAX_TIE_SHARE * self.rows


def set_device(device):
    BASE_FLAGS.append(f"--device={device}")


def run_all(names, is_quick, arguments, table):
    """Runs the cases in processes of their own, each with a server at a time. Names those that it did not finish, as the
    time had passed or it was interrupted. Returns whether it was interrupted."""
    until = time.monotonic() + arguments.seconds if arguments.seconds is not None else float("inf")
    waiting, running, interrupted = list(names), {}, False
    context = multiprocessing.get_context("spawn")  # gRPC has threads
    with concurrent.futures.ProcessPoolExecutor(arguments.processes, context, set_device, (arguments.device,)) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < arguments.processes and time.monotonic() < until:
                    name = waiting.pop(0)
                    running[pool.submit(run_one, name, is_quick(name), arguments.device)] = name
                if not running:
                    break
                for future in concurrent.futures.wait(running, return_when="FIRST_COMPLETED").done:
                    table.add(running.pop(future), future.result())
        except KeyboardInterrupt:
            waiting, interrupted = [*running.values(), *waiting], True
    for name in waiting:
        table.print(f"NOT REACHED {name}")
    return interrupted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="which cases; default: all")
    parser.add_argument("--first", action="store_true", help="a case of each kind of cache and of layer")
    parser.add_argument("--quick", action="store_true", help="all regimes for an architecture's first case only")
    parser.add_argument("--brief", action="store_true", help="the regimes of run_quick for every case")
    parser.add_argument("--device", default="cpu", help="the server's; on a GPU nothing is compared to the bit")
    parser.add_argument("--processes", type=int, default=1, help="cases at once")
    parser.add_argument("--seconds", type=float,
                        help="begin no case after this time, and name the rest; what ran longest ago comes first")
    parser.add_argument("--log", help="write the output to this file too")
    arguments = parser.parse_args()
    table = Table(arguments.log)
    names = arguments.cases or (ONE_OF_EACH if arguments.first else list(CASES))
    if arguments.seconds is not None:
        names = sorted(names, key=oracle.last_used)  # runs that end early reach all cases in turn
    interrupted = run_all(names, lambda name: arguments.brief or arguments.quick and not is_first(name), arguments, table)
    if table.end() or interrupted:
        sys.exit(1)


if __name__ == "__main__":
    main()
