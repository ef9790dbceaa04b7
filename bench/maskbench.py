"""Runs the schemas of MaskBench (guidance-ai/jsonschemabench, folder maskbench) through Berth's grammars, for
structure_bench.py. The data are fetched by whoever runs it.

A schema passes if its grammar compiles, takes every valid instance token by token, and refuses every invalid one. The
instances have their properties in other orders than the schemas, so a grammar takes any order.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess

from berth_server import BIN

# The beginning of a schema's file name says where it comes from.
SOURCE = re.compile(r"^(.*?)(?:---|_\d|_[a-z]+_\d)")
CHUNK = 200
CRASH = "CRASH"  # begins the refusal of a file that ended the program


def run_files(files, program, processes, fails_by_exit=False):
    """What a program prints of each file. A signal that ends the program is a crash on the first file that it has not
    printed. An exit status is one only if `fails_by_exit`, as in Python; else the program cannot run at all."""
    def of_chunk(chunk):
        done = subprocess.run([*program, *map(str, chunk)], capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.split("\n") if line]
        if done.returncode == 0 and len(lines) == len(chunk):
            return lines
        if done.returncode == 0 or len(lines) == len(chunk) or done.returncode > 0 and not fails_by_exit:
            raise SystemExit(f"{program[0]} ended with {done.returncode} after {len(lines)} of {len(chunk)} files: "
                             f"{done.stderr[-300:]}")
        bad = chunk[len(lines)]
        crash = {"file": bad.name, "refused": f"{CRASH} {done.returncode}: {done.stderr[-300:]}", "compile_us": 0}
        return [*lines, crash, *of_chunk(chunk[len(lines) + 1:])] if chunk[len(lines) + 1:] else [*lines, crash]

    chunks = [files[start:start + CHUNK] for start in range(0, len(files), CHUNK)]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        return [line for lines in pool.map(of_chunk, chunks) for line in lines]


def check(name, lines, may_crash=False):
    """Ends the bench if the engine crashed, or if nothing passes: then nothing was measured."""
    crashed = [line["file"] for line in lines if line.get("refused", "").startswith(CRASH)]
    if crashed and not may_crash:
        raise SystemExit(f"missed: {name} crashed on {len(crashed)} schemas, such as {crashed[0]}")
    if all("refused" in line or line.get("wrong") for line in lines):
        raise SystemExit(f"missed: {name} passes no schema")


def reason(refusal):
    """A refusal without what is the schema's own."""
    keyword = re.match(r"\S*?/?([$\w]+): (.*)", refusal)
    words = keyword[2] if keyword else refusal
    words = re.sub(r'"[^"]*"|\d+', "_", words)[:90]
    return f"{keyword[1]}: {words}" if keyword else words


def percentiles(values):
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return [at(0.5), at(0.9), at(0.99), ordered[-1]] if ordered else [0] * 4


def report(lines, details):
    rows = collections.defaultdict(collections.Counter)
    reasons = collections.Counter()
    for line in lines:
        source = (SOURCE.match(line["file"]) or ["", "others"])[1]
        for name in (source, "all"):
            rows[name]["schemas"] += 1
            rows[name]["compiled"] += "refused" not in line
            wrong = line.get("wrong", [])
            rows[name]["passing"] += "refused" not in line and not wrong
            rows[name]["valid refused"] += any(each["valid"] for each in wrong)
            rows[name]["invalid accepted"] += any(not each["valid"] for each in wrong)
        if "refused" in line:
            reasons[reason(line["refused"])] += 1
    columns = ["schemas", "compiled", "passing", "valid refused", "invalid accepted"]
    print(f"| source | {' | '.join(columns)} | passing |\n|{'---|' * (len(columns) + 2)}")
    for name, row in sorted(rows.items()):
        print(f"| {name} | {' | '.join(str(row[column]) for column in columns)} | {row['passing'] / row['schemas']:.1%} |")
    print("\n| CPU time, us | median | p90 | p99 | most |\n|---|---|---|---|---|")
    for name, values in (("compiling", [line["compile_us"] for line in lines if "refused" not in line]),
                         ("a mask", [mask for line in lines for mask in line.get("masks_us", [])])):
        print(f"| {name} | {' | '.join(f'{value:.0f}' for value in percentiles(values))} |")
    print("\n| refused | schemas |\n|---|---|")
    for words, count in reasons.most_common(40):
        print(f"| {words} | {count} |")
    if details:
        with open(details, "w", encoding="utf-8") as out:
            for line in lines:
                line.pop("masks_us", None)
                out.write(json.dumps(line) + "\n")


def measure(folder, tokenizer, every, details, processes, peers_python):
    """`peers_python`: the Python that has the other engines' packages; None: they do not run."""
    files = sorted(pathlib.Path(folder).glob("*.json"))[::every]
    if not files:
        raise SystemExit(f"--maskbench={folder}: no *.json is there; it is the folder maskbench/data of the data")
    programs = {"Berth": [os.path.join(BIN, "bench/maskbench"), "--any_order"]}
    if peers_python:
        script = pathlib.Path(__file__).parent / "peers" / "structure_engine.py"
        programs |= {engine: [peers_python, str(script), f"--engine={engine}"] for engine in ("llguidance", "xgrammar")}
    for name, program in programs.items():
        print(f"\n{name}\n", flush=True)
        peer = name != "Berth"
        lines = run_files(files, [*program, f"--tokenizer={tokenizer}"], processes, fails_by_exit=peer)
        report(lines, None if peer else details)
        check(name, lines, may_crash=peer)
