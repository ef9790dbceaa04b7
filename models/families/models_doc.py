#!/usr/bin/env python3
"""Prints docs/models.md: the architectures of families.cc, with the kinds of cache that they need and their parity cases.

    models/families/models_doc.py > docs/models.md     what `./dev docs` does for this document
"""

import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tools/parity"))
sys.dont_write_bytecode = True
from cases import CASES  # noqa: E402

HEAD = """\
<!-- Made by models/families/models_doc.py; edit that. -->

# Models

Berth serves checkpoints with these {count} values of `model_type` in `config.json`. The
[kinds of cache](caching.md#the-arena) say what their layers keep. *Tested variants* are the {num_cases} small random
checkpoints that `./dev parity` compares with transformers; `base` is the one without a name of its own.

| model_type | cache kinds | tested variants |
|---|---|---|
"""

TAIL = """
## What loads

A checkpoint is a folder with `config.json`, safetensors (one file, or several with an index) and `tokenizer.json`. Without
`tokenizer.json`, requests carry token ids.

Berth reads each field of `config.json` that changes the computation. It refuses a checkpoint at load, with a message that
names the field and the value, if it cannot honour one. Examples are an unknown `model_type`, `rope_type` or activation.
What it does with each field of the other files: [checkpoint files](checkpoint-files.md).

- **Data types.** Weights run in `float32` or `bfloat16` (`--dtype`). Checkpoints in float16 run in float32
  on the CPU, and in bfloat16 on a GPU.
- **Quantised checkpoints.** They are refused, except {quantised}. Berth quantises weights itself:
  [quantisation](quantisation.md#weights).
- **Multimodal checkpoints.** For {multimodal}, Berth serves the text model without images or audio.
- **Encoder-decoder models.** Models of the kind `cross` read the prompt with an encoder:
  [API](api.md#encoder-decoder-models).

Another architecture takes one source file, one line in a table, and a parity case: models/families/family.h says how.
"""


def families():
    """(model_type, kinds, quantisation that it may be stored by) of each row of kFamilies."""
    with open(os.path.join(ROOT, "models/families/families.cc"), encoding="utf-8") as file:
        (table,) = re.findall(r"kFamilies\[\] = \{\n(.*?)\n\};", file.read(), re.S)
    rows = []
    for line in table.splitlines():
        match = re.fullmatch(r'\s*\{"(\w+)", \w+, "([^"]*)"(.*)\},', line)
        if match is None:
            raise SystemExit(f"families.cc: this row is not understood: {line}")
        quantised = re.search(r'quantization=\*/"(\w+)"', match.group(3))
        rows.append((match.group(1), match.group(2), quantised.group(1) if quantised else ""))
    return rows


def variants(model_type):
    names = [name for name in CASES if name.split("-")[0] == model_type]
    if not names:
        raise SystemExit(f"tools/parity/cases.py has no case of {model_type}")
    return ", ".join(name[len(model_type) + 1:] or "base" for name in names)


def listed(names):
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def document():
    rows = families()
    types = [model_type for model_type, _, _ in rows]
    multimodal = [name for name in types if "vision_config" in CASES[name].fields]
    quantised = [f"those of {model_type} ({method.upper()})" for model_type, _, method in rows if method]
    return (HEAD.format(count=len(rows), num_cases=len(CASES)) +
            "".join(f"| {model_type} | {kinds} | {variants(model_type)} |\n" for model_type, kinds, _ in rows) +
            TAIL.format(multimodal=listed(multimodal), quantised=listed(quantised)))


if __name__ == "__main__":
    sys.stdout.write(document())
