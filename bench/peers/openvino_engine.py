"""OpenVINO GenAI as an engine of worker.py: its ContinuousBatchingPipeline on the CPU, on an IR of the same weights.

optimum-intel's own exporter writes the IR from the checkpoint. Its weights stay bfloat16. With int8 and int4 they are
compressed by nncf with optimum-intel's defaults. Both are asymmetric: int8 has one scale for each output, and int4 one
for each 128 inputs. With int4, the embedding and the head are int8.

The plugin chooses in which types it computes and keeps keys and values. Prefixes are not shared. A step takes up to
4,096 tokens of prompt, so that no prompt of a decode measurement is cut. The blocks of the cache are there from the
start, so that no step waits for the cache to grow. Tokens are chosen by the pipeline, greedily.
"""

import importlib.metadata
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from worker import serve

BLOCK_TOKENS = 32  # of the CPU's cache
STEP_TOKENS = 4096
TASK = "text-generation-with-past"
PACKAGES = ("openvino", "openvino-genai", "optimum-intel", "nncf")


def properties(threads):
    return {"INFERENCE_NUM_THREADS": threads}


def compile_ir(path, threads):
    import openvino

    return openvino.Core().compile_model(os.path.join(path, "openvino_model.xml"), "CPU", properties(threads))


def plain_logprobs(path, threads, tokens, first, ids):
    """The logprobs of ids[i] at the place `first` + i of the tokens, read one by one by the plain runtime with the same
    IR."""
    import numpy as np

    model = compile_ir(path, threads)
    inputs = {one.any_name for one in model.inputs}
    request = model.create_infer_request()
    found = []
    for end in [first + 1, *range(first + 2, len(tokens) + 1)]:
        start = 0 if end == first + 1 else end - 1
        given = {"input_ids": np.array([tokens[start:end]]), "attention_mask": np.ones((1, end), np.int64),
                 "position_ids": np.arange(start, end)[None], "beam_idx": np.zeros(1, np.int32)}
        logits = request.infer({name: value for name, value in given.items() if name in inputs})["logits"]
        exact = logits[0, -1].astype(np.float64)
        logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
        found.append(logprobs[ids[end - first - 1]].tolist())
    return found


class Engine:
    def __init__(self, path, threads, vocab, cache_tokens):
        import openvino_genai as genai

        self.path, self.threads, self.vocab = path, threads, vocab
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.num_kv_blocks = -(-cache_tokens // BLOCK_TOKENS)
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties(threads))
        self.requests = 0

    def add(self, prompt, tokens):
        import numpy as np
        import openvino
        import openvino_genai as genai

        config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False, logprobs=1)
        self.requests += 1
        return self.pipeline.add_request(self.requests, openvino.Tensor(np.array([prompt], np.int64)), config)

    def finish(self):
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()

    def choice(self, prompt):
        """The pipeline's own next token, and its logprob."""
        handle = self.add(prompt, 1)
        self.finish()
        output = handle.read_all()[0]
        return output.generated_ids[-1], output.generated_log_probs[-1]

    def logprobs(self, prompt, continuation, ids):
        """The pipeline says its choice's logprob alone; the others' come from the plain runtime, in a process of its own,
        whose memory does not count as the pipeline's."""
        tokens = prompt + continuation
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            others = process.submit(plain_logprobs, self.path, self.threads, tokens, len(prompt) - 1, ids).result()
        places = []
        for i, wanted in enumerate(ids):
            best, logprob = self.choice(tokens[:len(prompt) + i])
            places.append({"best": best, "logprob": logprob,
                           "of_ids": [logprob if token == best else other for token, other in zip(wanted, others[i])]})
        return places

    def decode(self, streams, prompt_tokens, steps):
        import numpy as np

        random = np.random.default_rng(0)
        # A stream whose prompt came in an earlier step must not end before the last one's.
        tokens = steps + 3 + -(-streams * prompt_tokens // STEP_TOKENS)
        handles = [self.add(random.integers(3, self.vocab, prompt_tokens), tokens) for _ in range(streams)]
        while not all(handle.can_read() for handle in handles):  # the prompts
            self.pipeline.step()
        for step in range(steps + 1):
            if step == 1:  # the first one is still warming up
                start = time.perf_counter()
            self.pipeline.step()
        seconds = time.perf_counter() - start
        for handle in handles:
            handle.stop()
        self.finish()
        return streams * steps / seconds

    def prefill(self, tokens):
        import numpy as np

        prompt = np.random.default_rng(1).integers(3, self.vocab, tokens)
        start = time.perf_counter()
        handle = self.add(prompt, 1)
        self.finish()
        seconds = time.perf_counter() - start
        handle.read_all()  # a request ends when its handle is gone
        return seconds


class Exporter:
    """Writes IRs. In a process of its own: it needs torch and transformers, the engine does not."""

    def export(self, checkpoint, folder):
        from optimum.exporters.openvino import main_export
        from optimum.intel.openvino import OVConfig

        # A format is named so that the exporter does not choose int8 for a large model; the weights keep their type.
        main_export(checkpoint, folder, task=TASK, ov_config=OVConfig(dtype="bf16"), convert_tokenizer=True)

    def compress(self, source, folder, weights):
        from optimum.intel.openvino import OVModelForCausalLM, OVWeightQuantizationConfig
        from optimum.intel.openvino.configuration import _DEFAULT_4BIT_WQ_CONFIG

        config = {"int8": dict(bits=8, sym=False), "int4": _DEFAULT_4BIT_WQ_CONFIG}[weights]
        model = OVModelForCausalLM.from_pretrained(source, quantization_config=OVWeightQuantizationConfig(**config),
                                                   compile=False)
        model.save_pretrained(folder)

    def version(self):
        return {package: importlib.metadata.version(package) for package in PACKAGES}


def make(**arguments):
    return Engine(**arguments) if arguments else Exporter()


if __name__ == "__main__":
    serve(make)
