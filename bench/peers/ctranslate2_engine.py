"""CTranslate2 as an engine of worker.py, by its Translator; and the conversion of a checkpoint into its files.

Greedy, one batch at a time. Tokens are "t" and their id. Computing needs only the ctranslate2 package.

    ctranslate2_engine.py INTERPRETER CHECKPOINT FOLDER

converts. It runs where transformers and torch are, and takes the package from the environment of INTERPRETER.
"""

import glob
import json
import os
import sys
import time

LOADERS = {"t5": "T5Loader", "m2m_100": "M2M100Loader"}


class Engine:
    def __init__(self, path, threads, compute_type):
        import ctranslate2

        supported = ctranslate2.get_supported_compute_types("cpu")
        if compute_type not in supported:  # it would take another one without a word
            raise ValueError(f"CTranslate2 has no {compute_type} on this CPU")
        self.translator = ctranslate2.Translator(path, "cpu", compute_type=compute_type, inter_threads=1,
                                                 intra_threads=threads)
        with open(os.path.join(path, "shared_vocabulary.json"), encoding="utf-8") as file:
            self.vocab = len(json.load(file))

    def sources(self, streams, tokens):
        import numpy

        return [[f"t{i}" for i in row] for row in numpy.random.default_rng(0).integers(3, self.vocab, (streams, tokens))]

    def translate(self, sources, tokens, **options):
        return self.translator.translate_batch(sources, beam_size=1, max_decoding_length=tokens,
                                               min_decoding_length=tokens, **options)

    def logprobs(self, prompt, continuation, ids):
        import numpy

        source, prefix, places = [f"t{i}" for i in prompt], [f"t{i}" for i in continuation], []
        for i, wanted in enumerate(ids):
            answer = self.translate([source], i + 1, target_prefix=[prefix[:i]], return_logits_vocab=True)[0]
            logits = numpy.array(answer.logits[0][-1], dtype=numpy.float64).reshape(-1)
            logprobs = logits - logits.max() - numpy.log(numpy.exp(logits - logits.max()).sum())
            best = int(logprobs.argmax())
            places.append({"best": best, "logprob": logprobs[best], "of_ids": logprobs[wanted].tolist()})
        return places

    def timed(self, sources, tokens):
        start = time.perf_counter()
        self.translate(sources, tokens)
        return time.perf_counter() - start

    def decode(self, streams, prompt_tokens, steps):
        """By two batches, of one token and of `steps` more: the difference is without the encoder."""
        sources = self.sources(streams, prompt_tokens)
        first = self.timed(sources, 1)
        return streams * steps / (self.timed(sources, steps + 1) - first)

    def prefill(self, tokens):
        return self.timed(self.sources(1, tokens), 1)


def convert(interpreter, checkpoint, folder):
    folders = glob.glob(os.path.join(os.path.dirname(os.path.dirname(interpreter)), "lib/python3*/site-packages"))
    sys.path += folders  # at the end: what is installed here comes first
    import torch
    import transformers
    from ctranslate2.converters import Converter
    from ctranslate2.converters import transformers as loaders

    class Loaded(Converter):
        def _load(self):
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32)
            config = model.config
            loader = getattr(loaders, LOADERS[config.model_type])()
            tokens = [f"t{i}" for i in range(config.vocab_size)]
            with torch.no_grad():
                spec = loader.get_model_spec(model)
            loader.set_vocabulary(spec, tokens)
            spec.config.decoder_start_token = tokens[config.decoder_start_token_id]
            spec.config.eos_token = tokens[config.eos_token_id]
            spec.config.bos_token = spec.config.unk_token = tokens[config.pad_token_id]
            return spec

    Loaded().convert(folder, quantization="bfloat16", force=True)  # as the checkpoint has them


if __name__ == "__main__":
    if len(sys.argv) > 1:
        convert(*sys.argv[1:])
    else:
        from worker import serve

        serve(Engine)
