"""Measures what conversations of agents find of their earlier turns in the cache, for a model of each recurrent kind, and
what keeping states costs. Run by `./dev bench agents`.

The workloads are those of docs/caching.md, "How much is shared", which also defines the hit share. TTFT is queue and
prefill of a turn, the median over the turns from the second on. `fixed` is a server that keeps states every 512 tokens.

The cost is the prefill of prompts that share nothing, on a server that keeps states against one that keeps them only at
the ends of prompts. Both run at once and take turns; the figure is the ratio of their fastest prefills.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/testing"))
sys.path.insert(0, os.path.join(HERE, "../tests/e2e"))

from berth_server import BerthServer, generate_request  # noqa: E402
from random_models import save  # noqa: E402

VOCAB = 4096
MESSAGE_END = 2
MESSAGE_START, THINK, CLOCK = 3, 4, 5
FIRST_TEXT = 20
COMMON = dict(vocab_size=VOCAB, hidden_size=512, num_hidden_layers=8, initializer_range=0.05, bos_token_id=None,
              eos_token_id=MESSAGE_END, pad_token_id=0)
ATTENTION = dict(COMMON, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                 max_position_embeddings=8192)
# 15 to 40 million random weights: the states of real models are as large in proportion.
MODELS = {
    "mamba": ("MambaConfig", dict(COMMON, state_size=16)),
    "mamba2": ("Mamba2Config", dict(COMMON, state_size=64, num_heads=16, head_dim=64, n_groups=1, expand=2)),
    "falcon_h1": ("FalconH1Config", dict(ATTENTION, mamba_d_ssm=512, mamba_n_heads=16, mamba_d_head=32,
                                         mamba_d_state=64, mamba_n_groups=1)),
    "qwen3_next": ("Qwen3NextConfig", dict(
        ATTENTION, layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
        linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64, linear_value_head_dim=64,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=256, shared_expert_intermediate_size=256)),
    "recurrent_gemma": ("RecurrentGemmaConfig", dict(COMMON, intermediate_size=1536, num_attention_heads=8, lru_width=512,
                                                     attention_window_size=1024)),
    "lfm2": ("Lfm2Config", dict(ATTENTION, layer_types=["conv", "conv", "full_attention", "conv"] * 2)),
}
# For the cost: so small that the prompts before the measured ones have touched all of its pages.
COST_ARENA = "96MiB"
WARM_UP = 12  # prompts
WORKLOADS = ("grow", "front", "strip", "side")
SETTINGS = {"auto": [], "fixed": ["--state_checkpoint_tokens=512", "--state_checkpoint_share=1"]}


class Workload:
    """Sends requests to a server, and counts what they share."""

    def __init__(self, server, turns, seed):
        self.server, self.turns, self.random = server, turns, random.Random(seed)
        self.seen, self.could_share, self.shared, self.ttft = [], 0, 0, []

    def text(self, count):
        return [self.random.randrange(FIRST_TEXT, VOCAB) for _ in range(count)]

    def message(self, count):
        return [MESSAGE_START, *self.text(count), MESSAGE_END]

    def serve(self, prompt, max_tokens, turn=True):
        answer = self.server.inference.Complete(
            generate_request(ids=prompt, max_tokens=max_tokens, ignore_eos=True), timeout=600)
        if self.seen:
            common = max(sum(1 for _ in self.common(prompt, tokens)) for tokens in self.seen)
            self.could_share += min(common, len(prompt) - 1)
            self.shared += answer.usage.cached_tokens
            if turn:
                self.ttft.append(answer.timings.queue_seconds + answer.timings.prefill_seconds)
        self.seen.append(prompt + list(answer.token_ids))
        return list(answer.token_ids)

    @staticmethod
    def common(a, b):
        for x, y in zip(a, b):
            if x != y:
                return
            yield x

    def turn(self, conversation):
        conversation += self.message(self.random.randrange(20, 80)) + [MESSAGE_START]
        conversation += self.serve(conversation, 40) + [MESSAGE_END]

    def grow(self):
        conversation = self.message(300)
        for _ in range(self.turns):
            self.turn(conversation)

    def front(self):
        head, rest = self.text(30), self.text(270) + [MESSAGE_END]
        for turn in range(self.turns):
            rest += self.message(self.random.randrange(20, 80)) + [MESSAGE_START]
            clock = [CLOCK, CLOCK + 1 + turn // 10, CLOCK + turn % 10]
            rest += self.serve([MESSAGE_START, *head, *clock, *rest], 40) + [MESSAGE_END]

    def strip(self):
        conversation = self.message(300)
        for _ in range(self.turns):
            conversation += self.message(self.random.randrange(20, 80))
            output = self.serve(conversation + [MESSAGE_START, THINK], 60)
            conversation += [MESSAGE_START, *output[40:], MESSAGE_END]

    def side(self):
        conversation = self.message(300)
        for _ in range(self.turns):
            self.turn(conversation)
            for _ in range(3):
                self.serve(self.message(40) + self.message(40) + [MESSAGE_START], 8, turn=False)


def run_workloads(folder, arguments):
    """{(workload, setting): (hit share, median TTFT)}"""
    results = {}
    for setting, flags in SETTINGS.items():
        for name in WORKLOADS:
            with BerthServer(folder, "--max_sequence_tokens=8192", f"--arena={arguments.arena}", "--log_level=warning",
                             *flags) as server:
                workload = Workload(server, arguments.turns, seed=1)
                getattr(workload, name)()
                results[name, setting] = workload.shared / workload.could_share, statistics.median(workload.ttft)
    return results


def prefill_cost(folder, arguments):
    """The share by which keeping states makes prefill slower."""
    generator = random.Random(2)
    flags = ["--max_sequence_tokens=8192", f"--arena={COST_ARENA}", "--log_level=warning"]
    seconds = {"auto": [], "0": []}
    with BerthServer(folder, *flags) as auto, BerthServer(folder, *flags, "--state_checkpoint_tokens=0") as ends:
        servers = [("auto", auto), ("0", ends)]
        for i in range(arguments.rounds + WARM_UP):
            prompt = Workload(None, 0, seed=generator.random()).text(1)
            while len(prompt) < arguments.prompt:
                prompt += Workload(None, 0, seed=generator.random()).message(generator.randrange(20, 80))
            for name, server in servers if i % 2 else reversed(servers):
                answer = server.inference.Complete(generate_request(ids=prompt, max_tokens=1), timeout=600)
                if i >= WARM_UP:
                    seconds[name].append(answer.timings.prefill_seconds)
    return min(seconds["auto"]) / min(seconds["0"]) - 1, statistics.median(seconds["auto"]) / statistics.median(
        seconds["0"]) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=60, help="prompts for the cost")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of each of them")
    parser.add_argument("--arena", default="512MiB")
    parser.add_argument("--only_cost", action="store_true", help="leave the workloads out")
    arguments = parser.parse_args()
    print(f"{'model':16}{'workload':10}{'hit share':>10}{'fixed':>8}{'TTFT, ms':>10}{'fixed':>8}{'cost, %: least':>16}"
          f"{'median':>8}", flush=True)
    for name in arguments.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            save(folder, *MODELS[name])
            least, median = prefill_cost(folder, arguments)
            print(f"{name:16}{'cold':10}{'':36}{100 * least:16.1f}{100 * median:8.1f}", flush=True)
            if arguments.only_cost:
                continue
            results = run_workloads(folder, arguments)
            for workload in WORKLOADS:
                (share, ttft), (fixed_share, fixed_ttft) = results[workload, "auto"], results[workload, "fixed"]
                print(f"{name:16}{workload:10}{share:10.3f}{fixed_share:8.3f}{1000 * ttft:10.1f}{1000 * fixed_ttft:8.1f}",
                      flush=True)


if __name__ == "__main__":
    main()
