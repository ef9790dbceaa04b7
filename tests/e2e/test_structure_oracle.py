"""Greedy structured output against an oracle that shares no code with it. The oracle has transformers' logits, and a
mask that tries every token of the vocabulary against a regular expression of Python's `regex` module."""

import contextlib
import functools
import os
import random
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import structures  # noqa: E402
import test_structure  # noqa: E402
from berth_server import BerthServer, api, generate_request  # noqa: E402

COUNT = 200 if test_structure.FULL else 40
MAX_TOKENS = 40
TIE = 1e-4  # logits closer than this may be in either order


class Vocabulary:
    """Each token's bytes, by the tokenizer's own alphabet of bytes."""

    def __init__(self, tokenizer):
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        alphabet = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
        special = set(tokenizer.all_special_ids)
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.bytes = {}
        for token, index in tokenizer.get_vocab().items():
            if index not in special:
                self.bytes[index] = bytes(alphabet[character] for character in token)


@functools.cache
def completions(tail):
    """A character that begins with these bytes, if there is one."""
    length = 2 if tail[0] < 0xE0 else 3 if tail[0] < 0xF0 else 4
    for filler in (0x80, 0x90, 0xA0):
        with contextlib.suppress(UnicodeDecodeError):
            return [(tail + bytes([filler] * (length - len(tail)))).decode()]
    return []


def may_follow(structure, data):
    """Whether the bytes, which may end within a character, can become a text of the structure."""
    for cut in range(4):
        head, tail = data[: len(data) - cut], data[len(data) - cut:]
        try:
            text = head.decode()
        except UnicodeDecodeError:
            continue
        if not tail:
            return structure.is_prefix(text)
        named = [character for character in set(structure.pattern.pattern) if character.encode().startswith(tail)]
        return any(structure.is_prefix(text + character) for character in named + completions(tail))
    return False


def allowed(structure, vocabulary, data):
    tokens = [index for index, piece in vocabulary.bytes.items() if may_follow(structure, data + piece)]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return tokens
    return tokens + ([vocabulary.end] if structure.pattern.fullmatch(text) else [])


def forced(structure, data, limit=64):
    """The bytes that must come next, before there is more than one continuation."""
    result = b""
    while len(result) < limit:
        try:
            if structure.pattern.fullmatch((data + result).decode()):
                break
        except UnicodeDecodeError:
            pass
        following = [byte for byte in range(256) if may_follow(structure, data + result + bytes([byte]))]
        if len(following) != 1:
            break
        result += bytes(following)
    return result


def check_tokens(structure, vocabulary, logits, tokens):
    """Each token is the most likely one of those that may come, or part of the only text that can."""
    data, by_choice, by_force = b"", 0, 0
    for position, token in enumerate(tokens):
        options = allowed(structure, vocabulary, data)
        assert token in options, (structure.fields, data, token)
        row = logits[position]
        best = max(float(row[option]) for option in options)
        if float(row[token]) >= best - TIE:
            by_choice += 1
        else:
            piece = vocabulary.bytes[token]
            assert forced(structure, data).startswith(piece), (structure.fields, data, piece, vocabulary.bytes.get(
                max(options, key=lambda option: row[option])))
            by_force += 1
        if token == vocabulary.end:
            assert position == len(tokens) - 1
        else:
            data += vocabulary.bytes[token]
    return by_choice, by_force


@pytest.mark.parametrize("model", test_structure.DEMOS, ids=["falcon_h1-demo", "gemma3-demo"])
def test_greedy_tokens_are_those_of_a_mask_by_brute_force(model):
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    vocabulary = Vocabulary(tokenizer)
    chosen = 0
    with BerthServer(model, *test_structure.CHECKS) as server:
        for seed in range(COUNT):
            rng = random.Random(20_000 + seed)
            structure = structures.make_structure(rng, exact=True)
            request = generate_request(chat=rng.choice(test_structure.PROMPTS), max_tokens=MAX_TOKENS,
                                       return_prompt_token_ids=True)
            structures.set_structure(request, structure.fields)
            answer = server.inference.Complete(request, timeout=120)
            prompt, tokens = list(answer.prompt_token_ids), list(answer.token_ids)
            with torch.no_grad():
                logits = oracle(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:]
            by_choice, _ = check_tokens(structure, vocabulary, logits, tokens)
            chosen += by_choice
    assert chosen > COUNT * 4
