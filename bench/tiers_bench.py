"""Measures what the tiers below the arena save and cost. One figure is the time to the first token of a prompt whose
beginning is cold, in the arena, in host memory, or on the disk. The other is how long another stream waits for its
tokens meanwhile. Run by `./dev bench tiers`.

The model is a llama of random weights whose cache is large beside its work: 100 KiB a token, so that 2,000 tokens are
200 MB. Milliseconds; medians, and the largest gap between two tokens of the running stream, over the rounds.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))

from berth_server import BerthServer, generate_request, join, wait_until  # noqa: E402


def make_model(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=8,
                         num_attention_heads=16, num_key_value_heads=16, head_dim=100, max_position_embeddings=8192,
                         bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(folder)


def ids(length, generator):
    return [generator.randrange(3, 1000) for _ in range(length)]


class Stream:
    """A request that runs beside the measured one; `gaps` are the times between its tokens."""

    def __init__(self, server, generator):
        self.gaps, self.stopping, self.error, self.started = [], False, None, threading.Event()
        request = generate_request(ids=ids(16, generator), max_tokens=4000, ignore_eos=True, share_prefix=False)
        self.call = server.inference.Generate(request, timeout=600)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        wait_until(self.started.is_set, "the stream's first tokens", 600)
        self.raise_error()

    def run(self):
        try:
            self.receive()
        except grpc.RpcError as error:
            self.error = error
        finally:
            self.started.set()

    def raise_error(self):
        if self.error is not None:
            raise self.error

    def receive(self):
        last = None
        for _ in self.call:
            now = time.monotonic()
            if last is not None:
                self.gaps.append(now - last)
            last = now
            if len(self.gaps) > 20:
                self.started.set()
            if self.stopping:
                break
        self.call.cancel()

    def take_gaps(self):
        gaps, self.gaps = self.gaps, []
        return gaps

    def stop(self):
        self.stopping = True
        join([self.thread], "the stream's end")
        self.raise_error()


def first_token(server, prompt):
    """(seconds to the first token, cached tokens)"""
    start = time.monotonic()
    elapsed, cached = None, 0
    for message in server.inference.Generate(generate_request(ids=prompt, max_tokens=2, ignore_eos=True), timeout=600):
        elapsed = elapsed or time.monotonic() - start
        cached = max(cached, message.usage.cached_tokens)
    return elapsed, cached


def push_out(server, arguments, generator):
    """Other prompts, until the arena holds nothing of the first."""
    for _ in range(arguments.others):
        first_token(server, ids(arguments.prefix, generator))


def measure(server, prefix, arguments, generator, rows, name, beside):
    stream = Stream(server, generator) if beside else None
    if beside:
        time.sleep(0.3)
        stream.take_gaps()
    elapsed, cached = first_token(server, prefix + ids(8, generator))
    row = rows.setdefault((name, beside), {"ms": [], "cached": [], "gap": [], "worst": []})
    row["ms"].append(1e3 * elapsed)
    row["cached"].append(cached)
    if beside:
        gaps = stream.take_gaps()
        row["gap"].append(1e3 * statistics.median(gaps))
        row["worst"].append(1e3 * max(gaps))
        stream.stop()


def one_round(model, folder, arguments, generator, rows, beside):
    image_bytes = arguments.prefix * 8 * 2 * 16 * 100 * 4
    flags = [f"--arena={5 * image_bytes // 2}B", f"--host_tier={8 * image_bytes}B", f"--disk_tier={folder}/tier", "--disk_tier_bytes=8GiB",
             f"--copy_bytes_per_step={arguments.copy_bytes_per_step}", "--max_sequence_tokens=6000", "--prefill_chunk_tokens=64",
             "--max_step_tokens=128", "--tier_idle=100ms", "--log_level=warning"]
    prefix = ids(arguments.prefix, generator)
    with BerthServer(model, *flags) as server:
        first_token(server, ids(300, generator))  # warm
        measure(server, ids(arguments.prefix, generator), arguments, generator, rows, "cold", beside)
        first_token(server, prefix)
        measure(server, prefix, arguments, generator, rows, "arena", beside)
        push_out(server, arguments, generator)
        measure(server, prefix, arguments, generator, rows, "host", beside)
        server.wait_idle()
    with BerthServer(model, *flags) as server:
        first_token(server, ids(300, generator))
        measure(server, prefix, arguments, generator, rows, "disk", beside)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=int, default=2000, help="tokens of the prompt's beginning")
    parser.add_argument("--others", type=int, default=3, help="prompts that push it out of the arena")
    parser.add_argument("--copy_bytes_per_step", default="256MiB")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    generator = random.Random(1)
    rows = {}
    with tempfile.TemporaryDirectory(prefix="berth-tiers-") as folder:
        model = os.path.join(folder, "model")
        make_model(model)
        for i in range(arguments.rounds):
            for beside in (False, True):
                with tempfile.TemporaryDirectory(dir=folder) as tiers:
                    one_round(model, tiers, arguments, generator, rows, beside)
    print(f"{'prefix in':10}{'cached tokens':>15}{'first token':>13}{'beside a stream':>17}{'its gap':>10}{'largest':>10}")
    for name in ("cold", "arena", "host", "disk"):
        alone, beside = rows[(name, False)], rows[(name, True)]
        print(f"{name:10}{statistics.median(alone['cached']):15.0f}{statistics.median(alone['ms']):13.0f}"
              f"{statistics.median(beside['ms']):17.0f}{statistics.median(beside['gap']):10.1f}{max(beside['worst']):10.1f}")


if __name__ == "__main__":
    main()
