"""The least that an engine must read and multiply for a figure, and the cache that a run needs."""

import json
import math
import pathlib

from measure import MAX_STEPS, PROMPT_TOKENS

EMBEDDINGS = ("embed_tokens.weight", "embeddings.weight")


def experts_read(experts, chosen, tokens):
    """How many of a layer's experts some token chooses, on average, if each token chooses at random."""
    return experts * (1 - (1 - chosen / experts) ** tokens) if experts else 0


def experts_of(config):
    return config.get("num_experts") or config.get("num_local_experts") or 0


def bytes_per_step(path, groups, row, config):
    """What a decode step must read, or write back: the weights of llama.cpp's file, except the embedding's rows and the
    experts that no token chose, and the caches at mid-run. A head that is the embedding is read whole."""
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    experts = experts_of(config)
    part = experts_read(experts, config["num_experts_per_tok"], row.size) / experts if experts else 1
    weights = sum(int(tensor.n_bytes) * (part if "_exps" in name else 1) for name, tensor in tensors.items()
                  if name != "token_embd.weight" or "output.weight" not in tensors)
    tokens = row.context + MAX_STEPS / 4
    return weights + row.size * cache_bytes(groups, tokens)


def cache_bytes(groups, tokens):
    """What a step moves of the caches of a sequence of `tokens`: no more than the window or the chunk. Recurrent states
    count twice, as each step reads and writes them."""
    return sum(2 * g.bytes_per_sequence + g.bytes_per_token * min(tokens, g.window or g.chunk or tokens)
               for g in groups)


def shapes(checkpoint):
    """{name: shape} of a checkpoint's tensors, from the head of its file."""
    with open(pathlib.Path(checkpoint) / "model.safetensors", "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}


def flops_per_token(tensors, config, head):
    """The operations of products with weights; attention and recurrences come on top. `head`: whether each token needs
    logits."""
    experts = experts_of(config)
    total = 0
    for name, shape in tensors.items():
        if name.endswith(EMBEDDINGS) or "conv" in name.rsplit(".", 2)[-2] and len(shape) != 2 or len(shape) < 2:
            continue
        if name == "lm_head.weight":
            total += math.prod(shape) if head else 0
        elif ".experts." in name and not name.endswith("_bias"):
            total += math.prod(shape) * config["num_experts_per_tok"] / experts
        elif ".experts." not in name:
            total += math.prod(shape)
    if head and "lm_head.weight" not in tensors:
        total += config["hidden_size"] * config["vocab_size"]
    return 2 * total


def sequences(arguments):
    """(streams, tokens of each) of all that a run measures."""
    decodes = [(streams, PROMPT_TOKENS + MAX_STEPS + 2) for streams in arguments.streams]
    contexts = [(1, context + MAX_STEPS + 2) for context in arguments.contexts]
    return [*decodes, *contexts, *((1, prompt + 2) for prompt in arguments.prompts)]


def cache_tokens(needed, block=32):
    """The cache of the largest case, in whole blocks, with two blocks more for each stream."""
    return max(streams * (tokens // block + 2) * block for streams, tokens in needed)


def arena_gib(config, needed):
    """2 GiB, and room for the keys and values if every layer were full attention."""
    heads = config.get("num_key_value_heads") or 0
    head_dim = config.get("head_dim") or config["hidden_size"] // max(config.get("num_attention_heads") or 1, 1)
    token = 2 * 2 * config["num_hidden_layers"] * heads * head_dim
    return 2 + math.ceil(cache_tokens(needed) * token / 2**30)
