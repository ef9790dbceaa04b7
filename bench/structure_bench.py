"""Measures what structured output costs. Run by `./dev bench structure`. Exits with 1 if a promise is broken:

  masks      one row's mask, at a vocabulary of 128,000: median <= 50 us, 99th percentile <= 1 ms, of all kinds together
  streams    32 constrained streams of a model of 125 million weights: >= 0.95 of the unconstrained tokens/s
  long keys  JSON with long keys: more tokens/s than unconstrained, for its forced tokens take no step

With --peers, llama.cpp's grammars (GBNF) run side by side, with the same weights, tokenizer, prompt, temperature and
number of threads. Each is measured against its own unconstrained streams, and llama.cpp runs without a server around it
(peers/).

With --maskbench=FOLDER, the schemas of MaskBench run in place of the promises (maskbench.py); with --peers, through
llguidance and xgrammar too. With --test-suite=FOLDER, the JSON-Schema-Test-Suite does (schema_suite.py): no invalid
instance is accepted.

The tokenizers are trained on this machine, on text that is printed. The model's weights are random. Constrained and
unconstrained runs take turns; ratios are of neighbours, and their median counts. Needs the parity oracle's packages.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "peers"), os.path.join(HERE, "../tests/testing")]

import bench_tokenizer  # noqa: E402
import gguf_file  # noqa: E402
import machine  # noqa: E402
import maskbench  # noqa: E402
import models  # noqa: E402
import schema_suite  # noqa: E402
from worker import Worker  # noqa: E402
from berth_server import BIN, BerthServer, generate_request  # noqa: E402

MASK_MEDIAN_US, MASK_P99_US = 50, 1000
STREAMS, STREAMS_RATIO = 32, 0.95
TOKENS = 128
RECORD = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                                           "tags": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
# Long enough that max_tokens cuts it.
KEYS = ["the_registered_name_of_the_organisation", "the_number_of_employees_at_the_end_of_the_year",
        "is_the_organisation_known_to_the_public", "the_country_of_the_registered_headquarters"]
LONG_KEYS = {"type": "array", "minItems": 40, "items": {
    "type": "object", "properties": {key: {"enum": ["yes", "no", "unknown"]} for key in KEYS}, "required": KEYS,
    "additionalProperties": False}}
STRUCTURES = {
    "record": dict(json_schema=json.dumps(RECORD)),
    "words": dict(regex="([a-z]{1,12} ){400}"),
    "long keys": dict(json_schema=json.dumps(LONG_KEYS), whitespace=1),
}


# llama.cpp's grammar of the same texts; None: its own translation of the schema.
PEER_GRAMMARS = {"record": None, "words": 'root ::= (word " "){400}\nword ::= [a-z]{1,12}\n', "long keys": None}
PROMPT = "Write JSON about organisation number"


def large_tokenizer():
    """A folder with a tokenizer of 128,000 tokens."""
    folder = pathlib.Path(bench_tokenizer.get(128_000))
    with_name = folder.parent / f"{folder.stem}-folder"
    with_name.mkdir(exist_ok=True)
    shutil.copy(folder, with_name / "tokenizer.json")
    return with_name


def measure_masks():
    """[(grammar, median, 99th percentile, masks)], in microseconds."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [os.path.join(BIN, "bench/grammar_bench"), f"--tokenizer={large_tokenizer()}",
                   "--benchmark_filter=BM_Mask", f"--benchmark_out={out.name}", "--benchmark_out_format=json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"grammar_bench ended with {done.returncode}\n{done.stderr}")
        report = json.load(out)
    return [(row["label"], row["median_us"], row["p99_us"], int(row["masks"])) for row in report["benchmarks"]]


def model():
    """The comparison's model of 125 million weights, with a trained tokenizer instead of a made-up one."""
    source = models.checkpoint("llama-125m")
    folder = source.with_name(f"{source.name}-trained-tokenizer")
    folder.mkdir(exist_ok=True)
    for file in source.glob("*.*"):
        if file.is_file() and file.name != "tokenizer.json" and not (folder / file.name).exists():
            os.link(file, folder / file.name)
    shutil.copy(bench_tokenizer.get(models.VOCAB), folder / "tokenizer.json")
    return folder


def run(server, structure, streams, seed):
    """Tokens per second of `streams` requests at once."""
    requests = []
    for stream in range(streams):
        request = generate_request(prompt=PROMPT, max_tokens=TOKENS, temperature=1.0,
                                   ignore_eos=structure is None)
        request.sampling.seed = seed * 1000 + stream
        for name, value in (structure or {}).items():
            setattr(request.structure, name, value)
        requests.append(request)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda request: server.inference.Complete(request, timeout=600), requests))
    seconds = time.monotonic() - start
    return sum(answer.usage.completion_tokens for answer in answers) / seconds


def measure_streams(server, name, streams, rounds):
    """(median tokens/s free, constrained, median ratio)."""
    structure = STRUCTURES[name]
    run(server, structure, streams, 0)  # compiles the grammar
    pairs = [(run(server, None, streams, seed), run(server, structure, streams, seed)) for seed in range(1, rounds + 1)]
    free, bound = (statistics.median(column) for column in zip(*pairs))
    return free, bound, statistics.median(bound / free for free, bound in pairs)


def peer_file(checkpoint):
    """The model and its tokenizer as llama.cpp's file, made anew if the tokenizer or what writes the file changed."""
    sources = [(checkpoint / "tokenizer.json").read_bytes(), pathlib.Path(gguf_file.__file__).read_bytes()]
    path = checkpoint / f"model-{models.digest(*sources)}.gguf"
    if not path.exists():
        for old in checkpoint.glob("model*.gguf"):
            old.unlink()
        part = path.with_suffix(".part")
        gguf_file.write(checkpoint, part, vocabulary=True)
        part.rename(path)
    return path


def measure_peers(server, checkpoint, python, rounds):
    """Prints one table of both engines. Each round runs Berth and llama.cpp, each without and with the structure."""
    from tokenizers import Tokenizer

    prompt = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(PROMPT).ids
    peer = Worker(python, os.path.join(HERE, "peers/llama_cpp_engine.py"), path=str(peer_file(checkpoint)),
                  threads=machine.num_processors(), vocab=models.VOCAB)
    print("\n| bfloat16, temperature 1 | streams | engine | unconstrained tokens/s | constrained | ratio |\n"
          "|---|---|---|---|---|---|")
    for name in STRUCTURES:
        schema = STRUCTURES[name].get("json_schema")
        grammar = PEER_GRAMMARS[name] or peer.schema_grammar(schema=schema)
        for streams in (1, STREAMS):
            run(server, STRUCTURES[name], streams, 0)
            pairs = {"Berth": [], "llama.cpp": []}
            for seed in range(1, rounds + 1):
                pairs["Berth"].append([run(server, each, streams, seed) for each in (None, STRUCTURES[name])])
                pairs["llama.cpp"].append([peer.sample(streams=streams, prompt=prompt, steps=TOKENS, grammar=each)
                                           for each in ("", grammar)])
            for engine, rates in pairs.items():
                free, bound = (statistics.median(column) for column in zip(*rates))
                ratio = statistics.median(bound / free for free, bound in rates)
                print(f"| {name} | {streams} | {engine} | {free:.0f} | {bound:.0f} | {ratio:.2f} |", flush=True)
    peer.close()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of an unconstrained and a constrained run")
    parser.add_argument("--peers", action="store_true", help="compare with llama.cpp, in place of the promises")
    parser.add_argument("--llama_cpp_python", help="the Python that has llama-cpp-python (./dev bench gives it)")
    parser.add_argument("--structure_python", help="the Python that has llguidance and xgrammar (./dev bench gives it)")
    parser.add_argument("--maskbench", metavar="FOLDER", help="the folder maskbench/data of MaskBench: run its schemas")
    parser.add_argument("--test-suite", metavar="FOLDER",
                        help="the folder tests of JSON-Schema-Test-Suite: run its schemas")
    parser.add_argument("--tokenizer", metavar="FOLDER",
                        help="with either: has tokenizer.json (./dev bench gives Llama 3.1's, of 128,000 tokens)")
    parser.add_argument("--every", type=int, default=1, help="with --maskbench: each how many of the schemas runs")
    parser.add_argument("--details", metavar="FILE", help="with either: write what came of each schema")
    arguments = parser.parse_args()
    if (arguments.maskbench or arguments.test_suite) and not arguments.tokenizer:
        parser.error("--maskbench and --test-suite need a --tokenizer")
    return arguments


def main():
    arguments = parse()
    print(machine.describe())
    print(f"tokenizers trained on {bench_tokenizer.describe()}\n")
    missed, processes = [], machine.num_processors()
    if arguments.maskbench:
        peers_python = arguments.structure_python if arguments.peers else None
        maskbench.measure(arguments.maskbench, arguments.tokenizer, arguments.every, arguments.details, processes,
                          peers_python)
        return
    if arguments.test_suite:
        accepted, right = schema_suite.measure(arguments.test_suite, arguments.tokenizer, arguments.details, processes)
        raise SystemExit(f"missed: {accepted} invalid instances were accepted, {right} were right"
                         if accepted or not right else 0)
    if arguments.peers:
        checkpoint = model()
        with BerthServer(checkpoint, "--dtype=bfloat16", "--log_level=warning", "--max_sequence_tokens=512") as server:
            measure_peers(server, checkpoint, arguments.llama_cpp_python, arguments.rounds)
        return

    print("| one row's mask, 128,000 tokens | median us | p99 us | masks |\n|---|---|---|---|")
    for grammar, median, p99, masks in measure_masks():
        print(f"| {grammar} | {median:.1f} | {p99:.0f} | {masks} |")
        if grammar == "all" and (median > MASK_MEDIAN_US or p99 > MASK_P99_US):
            missed.append(f"masks: median {median:.1f} us, 99th percentile {p99:.0f} us")

    print("\n| llama-125m, bfloat16 | streams | unconstrained tokens/s | constrained | ratio |\n|---|---|---|---|---|")
    with BerthServer(model(), "--dtype=bfloat16", "--log_level=warning", "--max_sequence_tokens=512") as server:
        for name, streams, least in (("record", STREAMS, STREAMS_RATIO), ("words", STREAMS, STREAMS_RATIO),
                                     ("long keys", STREAMS, 1.0), ("long keys", 1, 1.0)):
            free, bound, ratio = measure_streams(server, name, streams, arguments.rounds)
            print(f"| {name} | {streams} | {free:.0f} | {bound:.0f} | {ratio:.2f} |")
            if ratio < least:
                missed.append(f"{streams} streams of {name}: {ratio:.2f}, not {least}")
        print(f"\n{server.load().forced_tokens} tokens were forced")
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
