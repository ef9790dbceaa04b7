#!/usr/bin/env python3
"""Prints docs/checkpoint-files.md: what Berth does with each field of a checkpoint's files beside config.json.

    models/checkpoint_files_doc.py > docs/checkpoint-files.md     what `./dev docs` does for this document
"""

import os
import re

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))

HEAD = """\
<!-- Made by models/checkpoint_files_doc.py; edit that. -->

# The files of a checkpoint

Berth reads the files that transformers 5 reads, by its rules. Each field is honoured, named in a warning at start, or
refused. A refused field would change the tokens of greedy decoding, and its error says which field to remove.

| file | what Berth reads |
|---|---|
| `config.json` | the architecture: [models](models.md#what-loads) |
| `*.safetensors` | the tensors: [names](#names-of-tensors) |
| `generation_config.json` | defaults of requests and rules of the model: [below](#generation_configjson). Without the file, its fields are read from `config.json`. |
| `tokenizer.json` | the tokenizer |
| `tokenizer_config.json` | special tokens and chat templates: [below](#tokenizer_configjson) |
| `special_tokens_map.json`, `added_tokens.json` | special tokens and added tokens, if `tokenizer_config.json` has no `added_tokens_decoder` |
| `chat_template.jinja`, `additional_chat_templates/`, `chat_template.json` | [chat templates](api.md#chats) |

## generation_config.json

*Default*: the value is the default of this field of a request. *Always*: it holds for every request. *No effect*: no
token depends on it. *Warned*: Berth does not do it, and a warning names it. *Refused*: Berth does not load the
checkpoint. A field that changes nothing, such as `num_beams` 1, is neither warned of nor refused. A warning also names
fields that are not in this table.

| field | Berth | meaning |
|---|---|---|
"""

TOKENIZER = """
Sampling values count whatever `do_sample` says, as in vLLM. A request that sets none of them samples with these; one
with temperature 0 is greedy.

## tokenizer_config.json

Any other field whose name ends in `_token` is a special token of the model, and a variable of the chat template. A
warning names all other fields.

| field | Berth | meaning |
|---|---|---|
"""

TAIL = """
`add_bos_token` and `add_eos_token` have no effect in transformers 5 either: the post-processor of `tokenizer.json` says
which tokens are added. A warning names the field where the two differ.

## Names of tensors

A tensor is found by the name that transformers gives it, with or without the prefix of the model without its head:
`model.`, `backbone.` for mamba, or `transformer.` for t5. So a checkpoint that was saved without its head loads, and one
whose names have the prefix twice. Where the embedding and the head are tied, either may be stored. A tensor that the
architecture does not use is refused.

## Rotary positions

`rope_parameters`, or the older `rope_scaling` and `rope_theta`, which win if both are there. The type is `rope_type`, or
the older `type`. phi3's older types `su` and `yarn` are read as `longrope`, as in transformers.
"""

USES = {"kDefault": "default", "kAlways": "always", "kNoEffect": "no effect", "kWarned": "warned", "kRefused": "refused",
        "kHonoured": "honoured"}
GENERATION = r'\s*\{"(\w+)", (k\w+), "([^"]*)", "([^"]*)"\},'
TOKENIZER_ROW = r'\s*\{"(\w+)", (k\w+)(), "([^"]*)"\},'


def rows(path, row):
    """(name, use, neutral value, note) of each row of the table kFields of a C++ source."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        (table,) = re.findall(r"kFields\[\] = \{\n(.*?)\n\};", file.read(), re.S)
    found = []
    for line in table.splitlines():
        match = re.fullmatch(row, line)
        if match is None and not line.strip().startswith("//"):
            raise SystemExit(f"{path}: this row is not understood: {line}")
        if match is not None:
            found.append((match[1], USES[match[2]], match[3], match[4]))
    return found


def generation_fields():
    return rows("models/checkpoint/generation_fields.cc", GENERATION)


def tokenizer_fields():
    return rows("text/tokenizer_config.cc", TOKENIZER_ROW)


def table(fields):
    return "".join(f"| `{name}` | {use} | {note} |\n" for name, use, _, note in fields)


def document():
    return HEAD + table(generation_fields()) + TOKENIZER + table(tokenizer_fields()) + TAIL


if __name__ == "__main__":
    print(document(), end="")
