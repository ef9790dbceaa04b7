"""Measures the prefill of prompts that share nothing, in tokens per second, with this server and others. Run by
`./dev bench prefill`.

    ./dev bench prefill --server before=/tmp/before/server/berth-server

The servers take turns with the same prompts, which each generate one token. Medians over the rounds. In a gemma3n, the
last third of the layers has no keys of its own.
"""

import argparse
import concurrent.futures
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))
sys.path.insert(0, os.path.join(HERE, "../tests/e2e"))

import berth_server  # noqa: E402
from agents_bench import MODELS  # noqa: E402
from random_models import save  # noqa: E402

VOCAB = 4096
# Shaped as the smaller one that is published, at half its depth and width.
GEMMA3N = dict(vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB, hidden_size=1024, intermediate_size=4096,
               num_hidden_layers=15, num_kv_shared_layers=5, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
               activation_sparsity_pattern=[0.95] * 5 + [0.0] * 10, max_position_embeddings=8192, bos_token_id=None,
               eos_token_id=2, pad_token_id=0)
SHAPES = {"gemma3n": ("Gemma3nTextConfig", GEMMA3N), **MODELS}


@contextlib.contextmanager
def started(program, folder, flags):
    berth_server.SERVER = program
    with berth_server.BerthServer(folder, "--log_level=warning", *flags) as server:
        yield server


def tokens_per_second(server, prompts):
    requests = [berth_server.generate_request(ids=ids, max_tokens=1, ignore_eos=True, share_prefix=False)
                for ids in prompts]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        for _ in pool.map(lambda request: server.inference.Complete(request, timeout=600), requests):
            pass
    return sum(len(ids) for ids in prompts) / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3n", help=f"of {', '.join(SHAPES)}, or a folder")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=PROGRAM", help="another berth-server")
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048], help="tokens of a prompt")
    parser.add_argument("--at_once", type=int, default=4, help="prompts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--flag", action="append", default=[], help="of every server, such as --flag=--dtype=bfloat16")
    arguments = parser.parse_args()
    programs = {"this": berth_server.SERVER, **dict(named.split("=", 1) for named in arguments.server)}
    flags = [f"--max_sequence_tokens={max(arguments.lengths) + 1}", *arguments.flag]
    generator = random.Random(1)
    with contextlib.ExitStack() as stack:
        folder = arguments.model
        if folder in SHAPES:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            save(folder, *SHAPES[arguments.model])
        servers = {name: stack.enter_context(started(program, folder, flags)) for name, program in programs.items()}
        vocab = min(server.model_info().vocab_size for server in servers.values())
        for length in arguments.lengths:
            rates = {name: [] for name in servers}
            for i in range(-1, arguments.rounds):
                prompts = [[generator.randrange(3, vocab) for _ in range(length)] for _ in range(arguments.at_once)]
                for name in list(servers) if i % 2 else reversed(servers):
                    rate = tokens_per_second(servers[name], prompts)
                    if i >= 0:  # the first warms up
                        rates[name].append(rate)
            for name, measured in rates.items():
                spread = f"{min(measured):.0f}-{max(measured):.0f}"
                print(f"{arguments.model}, {arguments.at_once} prompts of {length}, {name}: "
                      f"{statistics.median(measured):8.0f} tokens/s ({spread})", flush=True)


if __name__ == "__main__":
    main()
