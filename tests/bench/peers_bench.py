"""Compares Berth with llama.cpp and transformers side by side on this machine's CPU. Run by `./dev bench peers`.

Random checkpoints of published shapes (peers/models.py) run in all three with the same weights. A check comes first
that they compute the same model (peers/agreement.py). Then each figure is measured in turn: one engine, the next, and
again, so that what else the machine does meets all of them alike; ratios are taken pair by pair. Berth is measured
through its server, as a client sees it (peers/berth_engine.py); llama.cpp and transformers in a process of their own,
with nothing around them. Every engine has the same number of threads, and nothing else to do.

  decode N     tokens/s of N streams together, after 32 tokens of prompt, while all of them decode
  prefill N    N / the time from a prompt of N tokens to its first output token

int8 and int4 are each engine's own: Berth's --weights, llama.cpp's Q8_0 and Q4_0 as its own quantiser writes them (the
head of Q4_0 is Q6_K). "Of the read bandwidth": the bytes that a decode step must read, which are the weights of
llama.cpp's file but for the embedding's rows, and the caches of the sequences at mid-run, times steps per second, over
what read_bandwidth.cc reaches on this machine with as many threads just before.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import shlex
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "peers"))

import agreement  # noqa: E402
import berth_engine  # noqa: E402
import gguf_file  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import report  # noqa: E402
from worker import Failed, Worker  # noqa: E402

ORACLE = sys.executable
FILE_TYPES = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
TRANSFORMERS_STREAMS = (1, 16)
DEMO = os.path.join(machine.ROOT, "models/demo/falcon_h1-demo")


@dataclasses.dataclass
class Overhead:
    model: str
    streams: int
    engine: float  # seconds of a step, as the server's metrics have it
    client: float  # seconds between two tokens of a stream


@dataclasses.dataclass
class Run:
    date: str
    machine: str
    threads: int
    command: str
    versions: str = ""
    minutes: float = 0
    noise: machine.Noise = dataclasses.field(default_factory=machine.Noise)
    rows: list = dataclasses.field(default_factory=list)
    checks: list = dataclasses.field(default_factory=list)
    overheads: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)  # what could not be measured


def say(text):
    print(text, file=sys.stderr, flush=True)


def llama_cpp(arguments, **fields):
    return Worker(arguments.llama_cpp_python, os.path.join(HERE, "peers/llama_cpp_engine.py"), **fields)


def transformers(**fields):
    return Worker(ORACLE, os.path.join(HERE, "peers/transformers_engine.py"), **fields)


def gguf_files(checkpoint, quantiser, threads):
    """{weights: path}, beside the checkpoint."""
    sources = [(pathlib.Path(HERE) / "peers" / name).read_bytes() for name in ("gguf_file.py", "llama_cpp_engine.py")]

    def make(folder):
        whole = folder / "BF16.gguf"
        gguf_file.write(checkpoint, whole)
        for file_type in FILE_TYPES.values():
            if file_type != "BF16":
                quantiser.quantise(source=str(whole), target=str(folder / f"{file_type}.gguf"), file_type=file_type,
                                   threads=threads)

    folder = models.made_once(checkpoint / f"gguf-{models.digest(*sources, quantiser.version())}", make)
    return {weights: folder / f"{file_type}.gguf" for weights, file_type in FILE_TYPES.items()}


def bytes_per_step(path, groups, row, steps=measure.MAX_STEPS // 2):
    """What a decode step reads at least once: docstring."""
    import gguf

    weights = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors if tensor.name != "token_embd.weight")
    tokens = measure.PROMPT_TOKENS + steps / 2
    return weights + row.size * sum(g.bytes_per_sequence + g.bytes_per_token * tokens for g in groups)


class Bench:
    def __init__(self, arguments, run):
        self.arguments, self.run = arguments, run
        self.cache_groups = {}  # {model: of its server}

    def opened(self, what, make):
        """An engine, or None with a note of why not."""
        try:
            return make()
        except berth_engine.NotBuiltIn as error:
            self.run.notes.append(f"{what}: not built in ({error})")
        except Failed as error:
            self.run.notes.append(f"{what}: {error}")
        return None

    def rows(self, model, weights):
        kinds = [("decode", n) for n in self.arguments.streams] + [("prefill", n) for n in self.arguments.prompts]
        for kind, size in kinds:
            others = ["transformers"] if weights == "bf16" and (kind == "prefill" or size in TRANSFORMERS_STREAMS) else []
            yield measure.Row(model, weights, kind, size, ["llama.cpp", "Berth", *others])

    def check(self, model, weights, engines, checkpoint):
        if "Berth" not in engines:
            return
        reference = transformers(path=str(checkpoint), threads=self.arguments.threads, dtype="float32")
        others = {name: engine for name, engine in engines.items() if name != "Berth"}
        found = agreement.examine(model, weights, engines["Berth"], others, reference, models.VOCAB)
        reference.close()
        self.run.checks += found
        say(report.agreements(found))

    def measure(self, model, weights, engines, path):
        if "Berth" in engines:
            self.cache_groups[model] = engines["Berth"].cache_groups
        for row in self.rows(model, weights):
            if model in self.cache_groups:
                row.bytes_per_step = bytes_per_step(path, self.cache_groups[model], row)
            measured = {name: engines[name] for name in row.engines if name in engines}
            for name in row.engines:
                if name not in engines:
                    row.notes[name] = "no"
            self.run.noise.sample()
            measure.fill(row, measured, self.arguments.rounds, self.arguments.seconds, self.arguments.limit,
                         lambda: machine.read_bandwidth(self.arguments.threads))
            self.run.rows.append(row)
            say(report.rates([row]).splitlines()[-1])

    def weights(self, model, weights, checkpoint, path):
        threads = self.arguments.threads
        makers = {
            "llama.cpp": lambda: llama_cpp(self.arguments, path=str(path), threads=threads, vocab=models.VOCAB),
            "Berth": lambda: berth_engine.Engine(checkpoint, threads, weights, self.arguments.berth_flag)}
        if weights == "bf16":
            makers["transformers"] = lambda: transformers(path=str(checkpoint), threads=threads, dtype="bfloat16")
        engines = {}
        try:
            for name, make in makers.items():
                engine = self.opened(f"{model}, {weights}, {name}", make)
                if engine is not None:
                    engines[name] = engine
            self.check(model, weights, engines, checkpoint)
            self.measure(model, weights, engines, path)
            if "Berth" in engines and model == "llama-125m":
                self.overhead(f"{model}, {weights}", engines["Berth"], [32])
        except Failed as error:  # what was measured so far stays
            self.run.notes.append(f"{model}, {weights}: {error}")
        finally:
            for engine in engines.values():
                engine.close()

    def overhead(self, model, engine, streams):
        for n in streams:
            engine.load(n, measure.PROMPT_TOKENS, measure.MIN_STEPS)  # warms it
            before = engine.decode_steps()
            rate = engine.decode(streams=n, prompt_tokens=measure.PROMPT_TOKENS, steps=measure.MAX_STEPS)
            seconds, number = (b - a for a, b in zip(before, engine.decode_steps()))
            self.run.overheads.append(Overhead(model, n, seconds / number, n / rate))

    def one_model(self, model, quantiser):
        say(f"{model}: making the checkpoint and its GGUF files, unless they are there")
        checkpoint = models.checkpoint(model)
        paths = gguf_files(checkpoint, quantiser, self.arguments.threads)
        for weights in self.arguments.weights:
            self.weights(model, weights, checkpoint, paths[weights])

    def demo(self):
        engine = berth_engine.Engine(DEMO, self.arguments.threads, "float32", self.arguments.berth_flag)
        try:
            self.overhead("falcon_h1-demo", engine, [1, 8, 32])
        except Failed as error:  # what was measured so far stays
            self.run.notes.append(f"falcon_h1-demo: {error}")
        finally:
            engine.close()


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = dict(nargs="+", metavar="X")
    parser.add_argument("--quick", action="store_true", help="llama-125m only, 2 rounds, fewer sizes: below 5 minutes")
    parser.add_argument("--models", choices=models.MODELS, **words)
    parser.add_argument("--weights", choices=FILE_TYPES, default=list(FILE_TYPES), **words)
    parser.add_argument("--streams", type=int, **words, help="of decode; default 1 4 16 32")
    parser.add_argument("--prompts", type=int, nargs="*", metavar="X", help="tokens of prefill; default 512 2048")
    parser.add_argument("--rounds", type=int, help="pairs of each figure; default 3")
    parser.add_argument("--seconds", type=float, default=3, help="about, of one decode measurement of llama.cpp")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a figure gets no new round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--berth_flag", action="append", default=[], help="one more flag of berth-server")
    parser.add_argument("--llama_cpp_python", required=True, help="the interpreter that has llama-cpp-python (./dev)")
    parser.add_argument("--write", action="store_true", help="replace the table of docs/performance.md")
    parser.add_argument("--json", help="write every pair measured to this file")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    arguments.models = arguments.models or (["llama-125m"] if quick else list(models.MODELS))
    arguments.streams = arguments.streams or ([1, 16] if quick else [1, 4, 16, 32])
    arguments.prompts = ([512] if quick else [512, 2048]) if arguments.prompts is None else arguments.prompts
    arguments.rounds = arguments.rounds or (2 if quick else 3)
    return arguments


def versions(quantiser):
    import torch
    import transformers as library

    found = quantiser.version()
    return (f"llama-cpp-python {found['llama-cpp-python']} ({found['system'].strip()}), "
            f"transformers {library.__version__} with torch {torch.__version__}")


def command(argv):
    """As a reader would give it: without where this machine has or puts files."""
    words, shown = iter(argv), ["./dev", "bench", "peers"]
    for word in words:
        if word in ("--llama_cpp_python", "--json"):
            next(words)
        elif not word.startswith(("--llama_cpp_python=", "--json=")):
            shown.append(word)
    return shlex.join(shown)


def main():
    arguments = parse(sys.argv[1:])
    start = time.monotonic()
    run = Run(datetime.date.today().isoformat(), machine.describe(), arguments.threads,
              command(sys.argv[1:]))
    bench = Bench(arguments, run)
    quantiser = llama_cpp(arguments)
    run.versions = versions(quantiser)
    run.noise.sample(2)
    for model in arguments.models:
        bench.one_model(model, quantiser)
    bench.demo()
    quantiser.close()
    run.minutes = (time.monotonic() - start) / 60
    text = report.render(run)
    print(text)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in run.rows], file, indent=1)
    if arguments.write:
        report.write(text)
    wrong = [check for check in run.checks if not check.ok]
    if wrong:
        raise SystemExit("not the same model: " + ", ".join(f"{c.model} in {c.engine}" for c in wrong))


if __name__ == "__main__":
    main()
