#!/usr/bin/env python3
"""Proves Berth on a GPU, in four parts: A1 and A2, it is correct; B, how fast it is; C, it lasts. `./dev gpu-check`
runs it.

Each stage is a process of its own with a time limit. It ends in one line: PASS, FAIL or SKIP, seconds and figures. A
stage that fails keeps its log and does not stop the others. On a GPU it runs once more with CUDA_LAUNCH_BLOCKING=1, so
that an error names its call; it has failed all the same. All lines come again at the end, and all logs are packed into
one file. Exits with 1 if a stage failed. A part ends within --budget seconds; a stage that finds no time left fails.

To add a stage: a function of a Setup (stages.py) in the part's file, and its line in a list of stages there.
"""

import argparse
import concurrent.futures
import importlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import traceback

from stages import BIN, Setup, Skip, program_environment, reason_of

# {part: (module, its list of stages)}
PARTS = {"A1": ("correctness", "TOKENS"), "A2": ("correctness", "WATCHED"), "B": ("speed", "STAGES"),
         "C": ("soak", "STAGES")}
# Else tests/testing/berth_server.py has servers fill memory, which the peers of part B do not.
UNFILLED_MEMORY = {"MALLOC_PERTURB_": "0"}
SKIPPED = 77  # a stage's exit code
CPU_LIMIT_FACTOR = 10  # of the stages' time limits, which are a GPU's
LOG_LINES = 15  # of a failed stage's log that are printed


def stages_of(part):
    module, stages = PARTS.get(part, (part, "STAGES"))
    return getattr(importlib.import_module(module), stages)


def run_stage(part, name, setup):
    """In the stage's own process: its last line is its figures, or why it failed or was skipped."""
    stage = next(stage for stage in stages_of(part) if stage.name == name)
    try:
        print(stage.run(setup) or "")
        return 0
    except Skip as reason:
        print(reason)
        return SKIPPED
    except Exception as error:  # whatever it is, it is the stage's result
        traceback.print_exc(file=sys.stdout)
        print(reason_of(error))
        return 1


def end(process):
    """Ends the process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def start(part, stage, arguments, limit, log, **environment):
    """Runs a stage to its end or its limit. Returns its result and its last line."""
    command = [sys.executable, __file__, part, f"--stage={stage.name}", f"--device={arguments.device}",
               f"--out={arguments.out}", f"--seconds={limit:.0f}", *(["--small"] if arguments.small else [])]
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "PYTHONUNBUFFERED": "1",
                                        "BERTH_LIBRARY_PATH": program_environment()["LD_LIBRARY_PATH"],
                                        **(UNFILLED_MEMORY if part == "B" else {}),
                                        **environment})
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return "LATE", f"ran longer than {limit:.0f} s"
        finally:
            end(process)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
    if code < 0:
        return "FAIL", f"ended by signal {-code}"
    return {0: "PASS", SKIPPED: "SKIP"}.get(code, "FAIL"), lines[-1]


def pack_logs(part, folder):
    """Puts the part's logs, and all tables of the folder, into one file."""
    packed = folder / f"{part}-logs.tar.xz"
    with tarfile.open(packed, "w:xz") as tar:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(f"{part}-") and path != packed or path.suffix in (".json", ".txt"):
                tar.add(path, arcname=f"{part}/{path.name}")
    return packed


def run_part(part, arguments):
    """Runs the part's stages in turn. Returns how many failed."""
    began = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    stages = [stage for stage in stages_of(part) if not arguments.only or stage.name in arguments.only]
    print(f"part {part}, at most {arguments.budget:.0f} s, on {arguments.device}: "
          f"{', '.join(stage.name for stage in stages)}", flush=True)

    def finish(stage):
        started = time.monotonic()
        left = arguments.budget - (started - began)
        log = arguments.out / f"{part}-{stage.name}.log"
        again = arguments.out / f"{part}-{stage.name}.again.log"
        for old in (log, again):
            old.unlink(missing_ok=True)
        limit = stage.seconds * (CPU_LIMIT_FACTOR if arguments.device == "cpu" else 1)
        result, figures = "LATE", f"not run: the {arguments.budget:.0f} s of part {part} were over"
        if left > 0:
            result, figures = start(part, stage, arguments, min(limit, left), log)
        left = arguments.budget - (time.monotonic() - began)
        if result == "FAIL" and arguments.device != "cpu" and left > 0:
            outcome = start(part, stage, arguments, min(limit, left), again, CUDA_LAUNCH_BLOCKING="1")
            figures += f"; again, with CUDA_LAUNCH_BLOCKING=1: {' '.join(outcome)}"
        result = {"LATE": "FAIL"}.get(result, result)
        line = f"{result} {stage.name:<16} {time.monotonic() - started:6.1f} s  {figures}"
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        print("\n".join([line, *(f"     | {row}" for row in tail[-LOG_LINES:] if result == "FAIL")]), flush=True)
        return line

    summary = [finish(stage) for stage in stages if stage.alone]
    with concurrent.futures.ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 4))) as pool:
        summary += pool.map(finish, [stage for stage in stages if not stage.alone])
    failures = sum(line.startswith("FAIL") for line in summary)
    summary.append(f"part {part}: {len(summary)} stages, {failures} failed, {time.monotonic() - began:.0f} s; "
                   f"logs: {arguments.out}")
    (arguments.out / f"{part}-summary.txt").write_text("\n".join(summary) + "\n", encoding="utf-8")
    packed = pack_logs(part, arguments.out)
    print("\nSummary\n" + "\n".join(summary) + f"\nall of it in one file: {packed}", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", help="A1, A2: correctness; B: speed; C: soak; or a Python module with STAGES")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu, which skips what needs a GPU")
    parser.add_argument("--small", action="store_true", help="small sizes, to test the stages themselves")
    parser.add_argument("--only", action="append", metavar="STAGE", help="run this stage; may be repeated")
    parser.add_argument("--budget", type=float, default=400, help="seconds that the part may take (default: 400)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("/tmp/berth-gpu-check"), help="folder of the logs")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    if arguments.stage:
        setup = Setup(arguments.device, arguments.small, arguments.out, arguments.seconds)
        sys.exit(run_stage(arguments.part, arguments.stage, setup))
    unknown = set(arguments.only or []) - {stage.name for stage in stages_of(arguments.part)}
    if unknown:
        parser.error(f"part {arguments.part} has no stage {', '.join(sorted(unknown))}")
    if not shutil.which(str(BIN / "server/berth-server")):
        sys.exit(f"no program {BIN}/server/berth-server: build it, or unpack the archive of ./dev gpu-pack")
    sys.exit(1 if run_part(arguments.part, arguments) else 0)


if __name__ == "__main__":
    main()
