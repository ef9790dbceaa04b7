"""Byte-level BPE tokenizers of a given size, for benches. They are trained on text that is on every machine with the
parity oracle, so that their tokens are as long and as many as those of models in service."""

import hashlib
import os
import pathlib
import sysconfig

SPECIALS = ["<s>", "</s>", "<pad>"]
PACKAGES = ("transformers", "torch", "sympy")


def text_files():
    """The Python files of the oracle's packages, in a fixed order."""
    site = pathlib.Path(sysconfig.get_path("purelib"))
    return [path for package in PACKAGES for path in sorted((site / package).rglob("*.py"))]


def describe():
    files = text_files()
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    return f"{len(files)} Python files of {', '.join(PACKAGES)}, {megabytes:.0f} MB"


def train(vocab_size, path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([str(file) for file in text_files()], trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise SystemExit(f"the text gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    tokenizer.save(str(path))


def get(vocab_size):
    """The path of a tokenizer.json with `vocab_size` tokens. Trains it at the first call (a minute or two)."""
    cache = pathlib.Path(os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth")))
    name = hashlib.sha256(f"{vocab_size} {describe()}".encode()).hexdigest()[:16]
    folder = cache / "bench-tokenizers"
    path = folder / f"{name}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        train(vocab_size, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    return path
