"""Checkpoints with older or shorter names of tensors and fields, which transformers loads: the same tokens come."""

import json
import os
import re
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
import random_models  # noqa: E402
from berth_server import BerthServer, DidNotStart, dry_run, generate_request  # noqa: E402

FLAGS = ["--dtype=float32", "--arena=64MiB", "--max_sequence_tokens=64"]
PROMPT = [5, 9, 31, 14, 23, 7, 9, 14]
SMALL = dict(random_models.SMALL, vocab_size=80, num_hidden_layers=2, initializer_range=0.4)
TIED = dict(SMALL, tie_word_embeddings=True)
CONFIGS = {
    "llama": ("LlamaConfig", TIED),
    "untied": ("LlamaConfig", SMALL),
    "mamba": ("MambaConfig", dict(vocab_size=80, hidden_size=32, state_size=8, num_hidden_layers=2, expand=2, conv_kernel=4,
                                  initializer_range=0.4, eos_token_id=2)),
    "t5": ("T5Config", dict(random_models.T5, vocab_size=80)),
    "bart": ("BartConfig", dict(vocab_size=80, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                                decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, init_std=0.4,
                                max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                                decoder_start_token_id=2, forced_eos_token_id=None)),
}


def renamed(pattern, replacement):
    return lambda tensors: {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}


def moved(new, *old):
    """The tensor under another name of those that are tied to it."""
    def change(tensors):
        rest = {name: tensor for name, tensor in tensors.items() if name not in old}
        return {**rest, new: next(tensors[name] for name in old if name in tensors)}
    return change


NAMES = {
    "llama without the prefix": ("llama", renamed(r"^model\.", "")),
    "llama with the prefix twice": ("llama", renamed(r"^", "model.")),
    "llama with its head within": ("untied", renamed(r"^lm_head", "model.lm_head")),
    "llama with its embedding as the head": ("llama", moved("lm_head.weight", "model.embed_tokens.weight")),
    "llama without the prefix, its embedding as the head": (
        "llama", lambda t: moved("lm_head.weight", "embed_tokens.weight")(renamed(r"^model\.", "")(t))),
    "mamba without the prefix": ("mamba", renamed(r"^backbone\.", "")),
    "t5 within another model": ("t5", renamed(r"^", "transformer.")),
    "t5 with the encoder's embedding": ("t5", moved("encoder.embed_tokens.weight", "shared.weight")),
    "t5 with the decoder's embedding": ("t5", moved("decoder.embed_tokens.weight", "shared.weight")),
    "t5 with its embedding as the head": ("t5", moved("lm_head.weight", "shared.weight")),
    "bart without the prefix": ("bart", renamed(r"^model\.", "")),
    "bart with the decoder's embedding": ("bart", moved("model.decoder.embed_tokens.weight", "model.shared.weight")),
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], "long_factor": [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7]}
PHI3 = ("Phi3Config", dict(SMALL, original_max_position_embeddings=1024))
# The scale of its attention is large enough for positions to change tokens.
GEMMA3 = ("Gemma3TextConfig", dict(SMALL, tie_word_embeddings=False, sliding_window=4, query_pre_attn_scalar=1,
                                   layer_types=["sliding_attention", "full_attention"]))
LLAMA = ("LlamaConfig", SMALL)
# With several layers of attention, positions change tokens.
OLMO_HYBRID = ("OlmoHybridConfig", dict({key: value for key, value in SMALL.items() if key != "head_dim"},
                                        num_hidden_layers=4, layer_types=["full_attention"] * 3 + ["linear_attention"]))
# The configuration, and what its config.json then says.
ROPES = {
    "rope_theta beside": (LLAMA, {"rope_theta": 100.0}),
    "rope_theta within": (LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "rope_theta within rope_scaling": (LLAMA, {"rope_scaling": {**LINEAR, "rope_theta": 100.0}, "rope_theta": 1e6}),
    "type": (LLAMA, {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "type and rope_type": (LLAMA, {"rope_scaling": {"type": "dynamic", **LINEAR}}),
    "an integer factor": (LLAMA, {"rope_scaling": {"type": "linear", "factor": 4}}),
    "rope_scaling beside rope_parameters": (LLAMA, {"rope_scaling": LINEAR, "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0}}),
    "an empty rope_scaling": (LLAMA, {"rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 100.0}}),
    "dynamic": (LLAMA, {"max_position_embeddings": 12, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "yarn": (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}}),
    "llama3": (LLAMA, {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 16}}),
    "phi3 su": (PHI3, {"rope_scaling": {"type": "su", "original_max_position_embeddings": 1024, **LONG}}),
    "phi3 yarn": (PHI3, {"rope_scaling": {"type": "yarn", **LONG}}),
    "phi3 longrope": (PHI3, {"rope_scaling": {"rope_type": "longrope", **LONG}}),
    "olmo_hybrid without positions": (OLMO_HYBRID, {"rope_theta": None}),
    "olmo_hybrid without positions, which are named": (OLMO_HYBRID, {"rope_theta": None, "rope_parameters": {
        "rope_type": "default"}}),
    "gemma3 before layer types": (GEMMA3, {"rope_theta": 50.0, "rope_local_base_freq": 20.0, "rope_scaling": LINEAR}),
}


class Checkpoints:
    def __init__(self, folder):
        self.folder = folder
        self.made = {}

    def plain(self, config, fields):
        """The folder of a checkpoint as transformers writes it."""
        key = config + repr(sorted(fields.items()))
        if key not in self.made:
            self.made[key] = self.folder / str(len(self.made))
            random_models.save(self.made[key], config, fields)
        return self.made[key]

    def changed(self, config, fields, tensors=lambda t: t, settings=lambda c: c):
        source, target = self.plain(config, fields), self.folder / f"changed-{len(os.listdir(self.folder))}"
        target.mkdir()
        save_file(tensors(load_file(source / "model.safetensors")), target / "model.safetensors", {"format": "pt"})
        (target / "config.json").write_text(json.dumps(settings(json.loads((source / "config.json").read_text()))))
        return target


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


def expected(folder):
    config = json.loads((folder / "config.json").read_text())
    seq2seq = config["model_type"] in ("t5", "bart")
    kind = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    out = model.eval().generate(torch.tensor([PROMPT]), max_new_tokens=12, no_repeat_ngram_size=1)[0].tolist()
    return out[1:] if seq2seq else out[len(PROMPT):]


def answer(folder):
    request = generate_request(ids=PROMPT, max_tokens=12)
    request.sampling.no_repeat_ngram_size = 1  # else tiny models say one token again and again
    with BerthServer(folder, *FLAGS) as server:
        return list(server.inference.Complete(request, timeout=60).token_ids)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_found_by_older_and_shorter_names(name, checkpoints):
    model, change = NAMES[name]
    plain = checkpoints.plain(*CONFIGS[model])
    folder = checkpoints.changed(*CONFIGS[model], tensors=change)
    assert set(load_file(folder / "model.safetensors")) != set(load_file(plain / "model.safetensors"))
    assert answer(folder) == expected(folder)


def test_a_tensor_of_another_model_is_still_refused(checkpoints):
    folder = checkpoints.changed(*CONFIGS["llama"], tensors=renamed(r"model\.norm\.weight", "encoder.norm.weight"))
    with pytest.raises(DidNotStart, match="model.norm.weight: is absent"):
        dry_run(folder)
    folder = checkpoints.changed(*CONFIGS["llama"], tensors=lambda t: {**t, "model.other.weight": torch.zeros(3)})
    with pytest.raises(DidNotStart, match="does not use: model.other.weight"):
        dry_run(folder)


@pytest.mark.parametrize("name", ROPES)
def test_rotary_positions_have_older_names(name, checkpoints):
    (config, fields), says = ROPES[name]

    def settings(plain):
        return {**{key: value for key, value in plain.items() if key != "rope_parameters"}, **says}

    folder = checkpoints.changed(config, fields, settings=settings)
    tokens = expected(folder)
    assert answer(folder) == tokens
    assert tokens != expected(checkpoints.plain(config, fields)), "the setting changes no token, so it shows nothing"


def test_a_mistral_with_layer_types_is_a_ministral(checkpoints):
    """transformers takes it for one: only the layers that are named so have a window."""
    model = ("MistralConfig", dict(SMALL, sliding_window=4))
    folder = checkpoints.changed(*model, settings=lambda config: {
        **config, "layer_types": ["full_attention", "sliding_attention"]})
    tokens = expected(folder)
    assert answer(folder) == tokens
    assert tokens != expected(checkpoints.plain(*model))


@pytest.mark.parametrize("stored, computed", [(torch.bfloat16, "bfloat16"), (torch.float32, "float32"),
                                              (torch.float16, "float32")])
def test_without_a_type_in_the_configuration_that_of_the_weights_counts(stored, computed, checkpoints):
    """gpt_oss is published like that."""
    folder = checkpoints.changed(
        *CONFIGS["llama"], tensors=lambda tensors: {name: tensor.to(stored) for name, tensor in tensors.items()},
        settings=lambda config: {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")})
    assert f"parameters for {computed} on cpu" in dry_run(folder)
