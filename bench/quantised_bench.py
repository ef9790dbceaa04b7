"""What a quantised cache, quantised checkpoints or quantised weights cost: next-token distributions against those in
full precision. Prints a table.

Run: ./dev bench quantised {cache,checkpoints,weights} [CASE...]

The running server answers both times, each time for the same contexts: a prompt and some tokens of the greedy output
in full precision. KL is the mean divergence over the contexts, in nats; agreement is the share of
contexts whose greedy token is the same.

For checkpoints, each context is a request that resumes from the states before its last token. The states are quantised
once, from a cold run, or turn after turn. Then the output comes back four tokens at a time, and each turn starts from
the checkpoint of the one before.
"""

import argparse
import concurrent.futures
import json
import os
import sys

import numpy as np

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path[:0] = [os.path.join(ROOT, "tests/testing"), os.path.join(ROOT, "tools/parity")]

import oracle  # noqa: E402
from berth_server import BerthServer, api, generate_request  # noqa: E402
from cases import VOCAB  # noqa: E402

CASES = ["llama", "qwen3", "gemma3_text", "gemma3n_text", "gpt_oss", "llama4_text", "falcon_h1", "jamba", "qwen3_next"]
RECURRENT = ["mamba", "mamba2", "falcon_h1", "jamba", "qwen3_next", "recurrent_gemma", "lfm2", "zamba2"]
DEMOS = ["falcon_h1-demo", "gemma3-demo"]
VARIANTS = {  # of what is quantised: names and flags
    "cache": [("int8", ["--cache_dtype=int8"]),
              ("int4, newest 128 exact", ["--cache_dtype=int4"]),
              ("int4, newest 16 exact", ["--cache_dtype=int4", "--cache_residual_tokens=16"])],
    "checkpoints": [("int8, once", ["--state_checkpoint_dtype=int8"]),
                    ("int8, turn after turn", ["--state_checkpoint_dtype=int8"])],
    "weights": [("int8", ["--weights=int8"]), ("int4", ["--weights=int4"])],
}
TOKENS = 64
STEPS = range(0, TOKENS, 4)


def chats():
    """Conversations of sums that end with a story: the longest texts that the demo models know."""
    with open(os.path.join(ROOT, "models/demo/heldout_additions.json"), encoding="utf-8") as file:
        sums = json.load(file)
    for n, animal in enumerate(["fox", "cat", "dog", "bear", "owl", "frog"]):
        turns = []
        for item in sums[5 * n: 5 * n + 5]:
            turns += [("user", item["question"]), ("assistant", item["answer"])]
        yield turns + [("user", f"Tell me a story about a {animal}.")]


def tokenized(server, turns):
    request = api().inference_pb2.TokenizeRequest()
    request.chat.messages.extend(api().inference_pb2.ChatMessage(role=role, content=content) for role, content in turns)
    return list(server.inference.Tokenize(request).token_ids)


def complete(server, ids, tokens, vocab=None, salt=""):
    return server.inference.Complete(
        generate_request(ids=ids, max_tokens=tokens, ignore_eos=True, logprobs=vocab, cache_salt=salt))


def row_of(response, vocab):
    row = np.full(vocab, -np.inf)
    for entry in response.logprobs[0].top:
        row[entry.token_id] = entry.logprob
    return row.astype(np.float64)


def distributions(server, contexts, vocab):
    """[contexts, vocab]: logprobs of the next token."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return np.stack(list(pool.map(lambda context: row_of(complete(server, context, 1, vocab), vocab), contexts)))


def from_checkpoints(server, contexts, vocab, turns):
    """Rows of contexts that each resume from the checkpoint before their last token. With `turns`, all contexts of a
    prompt have one salt, so that each resumes from the one before; else each has its own."""
    rows = []
    for i, context in enumerate(contexts):
        salt = f"{i // len(STEPS) if turns else i}"
        complete(server, context[:-1], 1, salt=salt)
        response = complete(server, context, 1, vocab, salt)
        assert response.usage.cached_tokens == len(context) - 1, response.usage
        rows.append(row_of(response, vocab))
    return np.stack(rows)


def flags(vocab):
    return ["--log_level=warning", "--max_running=16", "--max_sequence_tokens=640", "--arena=64MiB",
            f"--max_logprobs={vocab}", "--dtype=float32"]


def compare(folder, prompts, vocab, variants):
    """(KL, agreement) for each of the variants. `prompts`: None for the demo models' own."""
    with BerthServer(folder, *flags(vocab)) as server:
        prompts = prompts or [tokenized(server, turns) for turns in chats()]
        outputs = [list(complete(server, ids, TOKENS).token_ids) for ids in prompts]
        contexts = [ids + out[:step] for ids, out in zip(prompts, outputs) for step in STEPS]
        exact = distributions(server, contexts, vocab)
    results = []
    for name, more in variants:
        with BerthServer(folder, *flags(vocab), *more) as server:
            if "--state_checkpoint_dtype=int8" in more:
                got = from_checkpoints(server, contexts, vocab, turns="turn" in name)
            else:
                got = distributions(server, contexts, vocab)
        kl = float(np.mean(np.sum(np.exp(exact) * (exact - got), -1)))
        results.append((kl, float(np.mean(exact.argmax(-1) == got.argmax(-1)))))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=VARIANTS)
    parser.add_argument("cases", nargs="*", help=f"parity cases or demo models; default: {' '.join(CASES + DEMOS)}, "
                        f"of checkpoints {' '.join(RECURRENT + DEMOS[:1])}")
    arguments = parser.parse_args()
    variants = VARIANTS[arguments.what]
    print("| model | " + " | ".join(f"{name}: KL | agreement" for name, _ in variants) + " |")
    print("|---" * (1 + 2 * len(variants)) + "|", flush=True)
    default = RECURRENT + DEMOS[:1] if arguments.what == "checkpoints" else CASES + DEMOS
    for name in arguments.cases or default:
        if name in DEMOS:
            folder = os.path.join(ROOT, "models/demo", name)
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                results = compare(folder, None, json.load(file)["vocab_size"], variants)
        else:
            folder, answers, _ = oracle.load(name)
            results = compare(folder, [prompt for prompt in answers["prompts"] if len(prompt) > 1], VOCAB, variants)
        cells = [f"{kl:.1e} | {agreement:.1%}" for kl, agreement in results]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
