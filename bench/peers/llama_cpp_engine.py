"""llama.cpp as an engine of worker.py, through the low-level batch API of the llama-cpp-python package.

It runs with its own defaults: flash attention where it chooses so, float16 keys and values, repacked weights, steps of
at most 512 tokens. Each sequence has a cache, and numpy chooses greedily over the step's logits. Needs only that
package.
"""

import ctypes
import time

import llama_cpp
import numpy as np

from worker import serve

BATCH_TOKENS = 2048


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    pass


class Batch:
    def __init__(self):
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self.tokens, self.positions, self.wanted = (
            np.ctypeslib.as_array(field, (BATCH_TOKENS,))
            for field in (self.batch.token, self.batch.pos, self.batch.logits))
        for i in range(BATCH_TOKENS):
            self.batch.n_seq_id[i] = 1

    def fill(self, tokens, positions, sequences, wanted):
        n = len(tokens)
        self.batch.n_tokens = n
        self.tokens[:n], self.positions[:n], self.wanted[:n] = tokens, positions, wanted
        for i, sequence in enumerate(sequences):
            self.batch.seq_id[i][0] = sequence
        return self.batch


class Engine:
    def __init__(self, path, threads, vocab):
        self.threads, self.vocab = threads, vocab
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            raise ValueError("llama.cpp could not load the model")
        self.batch = Batch()
        self.context = None

    def open_context(self, streams, tokens_each):
        if self.context:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = streams
        params.n_ctx = streams * ((tokens_each + 255) // 256 * 256)  # a whole number of its blocks for each
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = self.threads
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise ValueError("llama.cpp could not make a context")

    def run(self, tokens, positions, sequences, wanted):
        """One llama_decode; the logits of the wanted places, [places, vocab]."""
        batch = self.batch.fill(tokens, positions, sequences, wanted)
        code = llama_cpp.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode gave {code}")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (int(np.sum(wanted)), self.vocab))

    def read(self, prompt, sequence=0):
        """The logits after the prompt, [1, vocab]."""
        for start in range(0, len(prompt), BATCH_TOKENS):
            part = prompt[start:start + BATCH_TOKENS]
            wanted = np.zeros(len(part), np.int8)
            wanted[-1] = 1
            logits = self.run(part, range(start, start + len(part)), [sequence] * len(part), wanted)
        return logits

    def read_together(self, prompt, sequences):
        """Reads the prompt for several sequences, in one batch. It keeps the logits after each."""
        wanted = np.zeros((len(sequences), len(prompt)), np.int8)
        wanted[:, -1] = 1
        self.run([*prompt] * len(sequences), [*range(len(prompt))] * len(sequences),
                 [sequence for sequence in sequences for _ in prompt], wanted.reshape(-1))

    def logprobs(self, prompt, continuation, ids):
        self.open_context(1, len(prompt) + len(continuation))
        logits = self.read(prompt)[0]
        places = []
        for i, wanted in enumerate(ids):
            if i > 0:
                logits = self.run([continuation[i - 1]], [len(prompt) + i - 1], [0], [1])[0]
            exact = logits.astype(np.float64)
            logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
            best = int(logprobs.argmax())
            places.append({"best": best, "logprob": logprobs[best], "of_ids": logprobs[wanted].tolist()})
        return places

    def decode(self, streams, prompt_tokens, steps):
        random = np.random.default_rng(0)
        self.open_context(streams, prompt_tokens + steps + 1)
        tokens = [int(self.read(random.integers(3, self.vocab, prompt_tokens), sequence)[0].argmax())
                  for sequence in range(streams)]
        wanted = np.ones(streams, np.int8)
        for step in range(steps + 1):
            if step == 1:  # the first one is still warming up
                start = time.perf_counter()
            logits = self.run(tokens, np.full(streams, prompt_tokens + step), range(streams), wanted)
            tokens = logits.argmax(1)
        return streams * steps / (time.perf_counter() - start)

    def sampler(self, grammar, seed):
        """Chooses a token at temperature 1; among those that `grammar` allows unless it is empty."""
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        if grammar:
            vocab = llama_cpp.llama_model_get_vocab(self.model)
            part = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
            if not part:
                raise ValueError("llama.cpp cannot read the grammar")
            llama_cpp.llama_sampler_chain_add(chain, part)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(1.0))
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(seed))
        return chain

    def sample(self, streams, prompt, steps, grammar):
        """Tokens/s of streams that each read the prompt and then sample `steps` tokens. Grammars are read before."""
        self.open_context(streams, len(prompt) + steps + 1)
        samplers = [self.sampler(grammar, seed) for seed in range(streams)]
        together = max(1, BATCH_TOKENS // len(prompt))  # prompts of a batch
        start = time.perf_counter()
        tokens = []
        for first in range(0, streams, together):
            part = samplers[first:first + together]
            self.read_together(prompt, range(first, first + len(part)))
            tokens += [llama_cpp.llama_sampler_sample(sampler, self.context, i * len(prompt) - 1)
                       for i, sampler in enumerate(part, 1)]
        for step in range(steps - 1):
            self.run(tokens, np.full(streams, len(prompt) + step), range(streams), np.ones(streams, np.int8))
            tokens = [llama_cpp.llama_sampler_sample(sampler, self.context, i) for i, sampler in enumerate(samplers)]
        seconds = time.perf_counter() - start
        for sampler in samplers:
            llama_cpp.llama_sampler_free(sampler)
        return streams * steps / seconds

    def schema_grammar(self, schema):
        """llama.cpp's grammar for a JSON schema, by the package's own translation."""
        from llama_cpp.llama_grammar import json_schema_to_gbnf

        return json_schema_to_gbnf(schema)

    def prefill(self, tokens):
        prompt = np.random.default_rng(1).integers(3, self.vocab, tokens)
        self.open_context(1, tokens + 1)
        start = time.perf_counter()
        self.read(prompt)[0].argmax()
        return time.perf_counter() - start


class Quantiser:
    """Makes the quantised files, with llama.cpp's own choice of each tensor's type."""

    def __init__(self):
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))

    def quantise(self, source, target, file_type, threads):
        params = llama_cpp.llama_model_quantize_default_params()
        params.nthread = threads
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
        if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
            raise RuntimeError(f"llama.cpp could not write {file_type}")

    def version(self):
        return {"llama-cpp-python": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode()}


def make(**arguments):
    llama_cpp.llama_backend_init()
    return Engine(**arguments) if arguments else Quantiser()


if __name__ == "__main__":
    serve(make)
