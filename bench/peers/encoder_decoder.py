"""The encoder-decoder models of the comparison: published shapes, random weights, and what is measured of them.

Weights are drawn as transformers initialises such models; the standard deviation of m2m_100's is chosen so that products
keep their input's size. CTranslate2's files are written from the same weights by its own converter.

To add a model: its line in MODELS, and the converter's loader in LOADERS of ctranslate2_engine.py.
"""

import json
import os
import pathlib
import subprocess
import sys

import berth_engine
import measure
import models
import report
from worker import Failed, Worker

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINE = os.path.join(HERE, "ctranslate2_engine.py")
SOURCE_TOKENS = 64  # before a decode measurement
STREAMS = (1, 16, 32)
ENCODED = (512,)
WEIGHTS = {"float32": "float32", "bf16": "bfloat16", "int8": "int8"}  # as CTranslate2 calls them

MODELS = {
    "t5-small": models.PeerModel(
        "T5Config",
        dict(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_decoder_layers=6, num_heads=8,
             pad_token_id=0, eos_token_id=1, decoder_start_token_id=0),
        dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_decoder_layers=2, num_heads=4)),
    "m2m_100-418m": models.PeerModel(
        "M2M100Config",
        dict(vocab_size=128112, d_model=1024, encoder_layers=12, decoder_layers=12, encoder_attention_heads=16,
             decoder_attention_heads=16, encoder_ffn_dim=4096, decoder_ffn_dim=4096, max_position_embeddings=1024,
             scale_embedding=True, init_std=1024 ** -0.5, bos_token_id=0, pad_token_id=1, eos_token_id=2,
             decoder_start_token_id=2),
        dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
             encoder_ffn_dim=96, decoder_ffn_dim=96, init_std=0.125)),
}


def make_checkpoint(model, folder):
    """config.json, model.safetensors in bfloat16 and tokenizer.json into the existing `folder`."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, model.config)(**model.fields)
    made = transformers.AutoModelForSeq2SeqLM.from_config(config).to(torch.bfloat16)
    made.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(models.tokenizer_json(config.vocab_size)))


def checkpoint(name):
    """The folder of MODELS[name], made if need be."""
    key = models.digest(pathlib.Path(__file__).read_bytes(), MODELS[name])
    return models.made_once(models.cache_root() / f"{name}-{key}", lambda folder: make_checkpoint(MODELS[name], folder))


def converted(path, ctranslate2_python):
    """CTranslate2's folder, beside the checkpoint. This Python has what the converter needs but the package itself."""
    def make(folder):
        done = subprocess.run([sys.executable, ENGINE, ctranslate2_python, str(path), str(folder)], text=True,
                              stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise Failed(f"CTranslate2 could not convert: {done.stderr.strip().splitlines()[-1]}")

    return models.made_once(path / f"ctranslate2-{models.digest(pathlib.Path(ENGINE).read_bytes())}", make)


def rows(model, weights, transformers_streams):
    for kind, sizes in (("decode", STREAMS), ("encode", ENCODED)):
        for size in sizes:
            others = [] if weights == "int8" or (kind == "decode" and size not in transformers_streams) else ["transformers"]
            yield measure.Row(model, weights, kind, size, ["CTranslate2", "Berth", *others], context=SOURCE_TOKENS)


def makers(path, weights, arguments):
    """{engine: what starts it}."""
    def transformers(dtype):
        return Worker(sys.executable, os.path.join(HERE, "transformers_seq2seq_engine.py"), path=str(path),
                      threads=arguments.threads, dtype=dtype)

    found = {
        "CTranslate2": lambda: Worker(
            arguments.ctranslate2_python, ENGINE, path=str(converted(path, arguments.ctranslate2_python)),
            threads=arguments.threads, compute_type=WEIGHTS[weights]),
        "Berth": lambda: berth_engine.Engine(path, arguments.threads, weights, arguments.berth_flag)}
    if weights != "int8":
        found["transformers"] = lambda: transformers(WEIGHTS[weights])
    return {name: make for name, make in found.items() if name in arguments.engines}, lambda: transformers("float32")


def compare(bench, model, weights, say, transformers_streams):
    """Checks and measures one model with one kind of weights, into bench.run."""
    path, arguments, engines = checkpoint(model), bench.arguments, {}
    made, reference = makers(path, weights, arguments)
    try:
        for name, make in made.items():
            engine = bench.opened(f"{model}, {weights}, {name}", make)
            if engine is not None:
                engines[name] = engine
        bench.check(model, weights, engines, reference, MODELS[model].fields["vocab_size"])
        for row in rows(model, weights, transformers_streams):
            bench.run.noise.sample()
            measure.fill(row, {name: engines[name] for name in row.engines if name in engines}, arguments.rounds,
                         arguments.seconds, arguments.limit, lambda: None)
            bench.run.translations.append(row)
            say(report.translations([row]).splitlines()[-1])
    except Failed as error:  # what was measured so far stays
        bench.run.notes.append(f"{model}, {weights}: {error}")
    finally:
        for engine in engines.values():
            engine.close()
