"""Measures what a shared prefix saves: 64 requests that begin with the same 4,000 tokens, cold and shared. Run by
`./dev bench prefix`.

Work is counted in prompt tokens computed (those found in the cache taken off); seconds are medians over the rounds.
The cold and the shared run take turns to be first; a cold run finds nothing, whatever is kept.
"""

import argparse
import concurrent.futures
import os
import random
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))

from berth_server import BerthServer, generate_request  # noqa: E402

WARM_UP = 4  # requests before the first round
DEMO = os.path.join(HERE, "../models/demo/falcon_h1-demo")


def prompts(arguments, vocab, generator):
    prefix = [generator.randrange(3, vocab) for _ in range(arguments.prefix)]
    return [prefix + [generator.randrange(3, vocab) for _ in range(arguments.tail)] for _ in range(arguments.requests)]


def run(server, batch, shared, tokens):
    """(prompt tokens computed, seconds, outputs)"""
    before = server.load()
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(batch)) as pool:
        outputs = list(pool.map(lambda ids: list(server.inference.Complete(generate_request(
            ids=ids, max_tokens=tokens, ignore_eos=True, share_prefix=shared), timeout=600).token_ids), batch))
    seconds = time.monotonic() - start
    after = server.load()
    hits = after.prefix_hit_tokens - before.prefix_hit_tokens
    return after.prompt_tokens - before.prompt_tokens - hits, seconds, outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--prefix", type=int, default=4000, help="tokens that all prompts share")
    parser.add_argument("--tail", type=int, default=16, help="tokens of each prompt's own")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16, help="output tokens per request")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    generator = random.Random(1)
    flags = [f"--max_sequence_tokens={arguments.prefix + arguments.tail + arguments.tokens}", "--arena=2GiB",
             "--log_level=warning"]
    work, seconds, equal, total = {False: [], True: []}, {False: [], True: []}, 0, 0
    with BerthServer(arguments.model, *flags) as server:
        vocab = server.model_info().vocab_size
        run(server, prompts(arguments, vocab, generator)[:WARM_UP], False, arguments.tokens)
        for i in range(arguments.rounds):
            batch = prompts(arguments, vocab, generator)  # new ones, so that nothing is left of the last round
            outputs = {}
            for shared in (False, True) if i % 2 == 0 else (True, False):
                computed, elapsed, outputs[shared] = run(server, batch, shared, arguments.tokens)
                work[shared].append(computed)
                seconds[shared].append(elapsed)
            equal += sum(a == b for a, b in zip(outputs[False], outputs[True]))
            total += len(batch)
    cold, hit = (statistics.median(work[shared]) for shared in (False, True))
    slow, fast = (statistics.median(seconds[shared]) for shared in (False, True))
    print(f"cold:   {cold:9.0f} prompt tokens computed, {slow:7.2f} s")
    print(f"shared: {hit:9.0f} prompt tokens computed, {fast:7.2f} s")
    print(f"{cold / hit:.1f} times less prefill work, {slow / fast:.1f} times faster; {equal} of {total} outputs equal")


if __name__ == "__main__":
    main()
