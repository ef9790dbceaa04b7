"""Measures what the logprobs of prompts cost: prompts with and without them, that share nothing. Run by
`./dev bench prompt_logprobs`.

Both kinds take turns on one server, some at a time, each time with the same prompts. The cost is the ratio of the
seconds of all of them, which includes delivering the logprobs. Each request also generates one token.
"""

import argparse
import concurrent.futures
import os
import random
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))
sys.path.insert(0, os.path.join(HERE, "../tests/e2e"))

from agents_bench import MODELS, VOCAB  # noqa: E402
from berth_server import BerthServer, generate_request  # noqa: E402
from random_models import save  # noqa: E402


def seconds(server, batch, **fields):
    requests = [generate_request(ids=ids, max_tokens=1, ignore_eos=True, share_prefix=False, **fields) for ids in batch]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(batch)) as pool:
        for answer in pool.map(lambda request: server.inference.Complete(request, timeout=600), requests):
            assert len(answer.prompt_logprobs) == (len(batch[0]) - 1 if fields else 0)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="falcon_h1", help=f"of {', '.join(MODELS)}, or a folder")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--length", type=int, default=256, help="tokens of each")
    parser.add_argument("--top", type=int, default=1, help="likeliest tokens in each place")
    parser.add_argument("--at_once", type=int, default=20)
    arguments = parser.parse_args()
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.model
        if folder in MODELS:
            folder = temporary
            save(folder, *MODELS[arguments.model])
        with BerthServer(folder, f"--max_sequence_tokens={arguments.length + 1}", "--log_level=warning") as server:
            vocab = min(VOCAB, server.model_info().vocab_size)
            plain = scored = 0.0
            for i in range(-1, arguments.prompts // arguments.at_once):
                batch = [[generator.randrange(3, vocab) for _ in range(arguments.length)]
                         for _ in range(arguments.at_once)]
                took = {}
                for with_logprobs in (False, True) if i % 2 else (True, False):
                    fields = {"prompt_logprobs": arguments.top} if with_logprobs else {}
                    took[with_logprobs] = seconds(server, batch, **fields)
                if i >= 0:  # the first warms up
                    plain, scored = plain + took[False], scored + took[True]
    count = arguments.prompts // arguments.at_once * arguments.at_once
    print(f"{count} prompts of {arguments.length} tokens, {arguments.top} likeliest tokens each")
    print(f"without: {plain:8.2f} s, with: {scored:8.2f} s; {scored / plain:.3f} of the cost")


if __name__ == "__main__":
    main()
