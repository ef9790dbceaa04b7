"""Embeddings: the hidden states that transformers gives after its final norm, and the comparison with the server's.

The answers lie beside the case's others, by the hash of what decides them.
"""

import copy
import hashlib
import pathlib

import numpy as np

import forked
import lock
from berth_server import api
from cases import CASES

LENGTHS = [1, 17, 100, 300]
POOLINGS = ["POOLING_LAST", "POOLING_MEAN"]
TOLERANCE = 1e-4  # of the largest number


def prompts_of(answers):
    return [prompt for prompt in answers["prompts"] if len(prompt) in LENGTHS]


def load(name, folder, answers):
    """[prompts, poolings, hidden], in float64."""
    sources = [pathlib.Path(__file__).read_bytes(), repr(CASES[name]).encode()]
    file = folder / f"embedded-{hashlib.sha256(b'0'.join(sources)).hexdigest()[:16]}.npy"
    with lock.locked(name, folder):
        if not file.exists():
            for old in folder.glob("embedded-*"):
                old.unlink()
            temporary = folder / "embedded.tmp.npy"
            np.save(temporary, make(CASES[name], answers))
            temporary.rename(file)
        return np.load(file)


def make(case, answers):
    import torch

    model = forked.remade_model(case)
    embeddings = []
    with torch.no_grad():
        for prompt in prompts_of(answers):
            copied = copy.deepcopy(model)  # some remember the last length
            base = copied.base_model
            if base is copied:  # llama4's two models name none
                base = getattr(copied, "language_model", copied).model
            states = base(torch.tensor([prompt]), use_cache=False).last_hidden_state[0].double()
            embeddings.append(torch.stack([states[-1], states.mean(0)]).numpy())
    return np.stack(embeddings)


def embed(server, prompt):
    """Under each pooling; none of an encoder-decoder model, which has no embeddings."""
    if server.model_info().limits.max_encoder_tokens:
        return []
    pb = api().inference_pb2
    requests = [pb.EmbedRequest(token_ids=pb.TokenIds(ids=prompt), pooling=pooling, normalize=False, share_prefix=False)
                for pooling in POOLINGS]
    return [list(server.inference.Embed(request, timeout=120).embedding) for request in requests]


def compare(name, server, folder, answers, outcome):
    if server.model_info().limits.max_encoder_tokens:
        return
    for prompt, expected in zip(prompts_of(answers), load(name, folder, answers)):
        for pooling, embedding, numbers in zip(POOLINGS, embed(server, prompt), expected):
            outcome.rows += 1
            error = np.abs(np.array(embedding) - numbers).max() / np.abs(numbers).max()
            if not error <= TOLERANCE:
                outcome.miss(f"prompt of {len(prompt)}: {pooling} is off by {error:.1e}")
