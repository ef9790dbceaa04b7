"""The models that the comparison with other engines runs: published shapes, random weights, Hugging Face files.

Made in the cache folder, by the hash of all that decides them, and kept there until `drop`. Weights are drawn so that
the model is not a degenerate one. Products keep their input's size, attention is neither flat nor one-hot, states decay
at the rates of trained ones, and logits spread by about 2. So a wrong layout, sign or rotation shows in every logprob.

To add a model: its line in MODELS, and its architecture in gguf_file.py.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import shutil
import string

VOCAB = 32000
COMMON = dict(vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, pad_token_id=2, tie_word_embeddings=False)
TIED_GAIN = 1.3
# Routers are sure of their experts, as trained ones are: rounding must not decide which expert a token goes to.
ROUTERS, ROUTER_GAIN = ("gate", "router"), 4
LLAMA = dict(COMMON, max_position_embeddings=40960, rms_norm_eps=1e-5)

# Chunks of Mamba-2 are how transformers computes a prompt, and not part of the model. Here they have 64 tokens instead
# of the published 256, with which it would need 6 GB for the longest prompts here.


@dataclasses.dataclass(frozen=True)
class PeerModel:
    config: str  # class of transformers
    fields: dict
    tiny: dict  # what tests/bench/test_peers.py changes, to load it in a second


def layers(count, most, others, at):
    return [others if i in at else most for i in range(count)]


MODELS = {
    "llama-125m": PeerModel(
        "LlamaConfig",
        dict(LLAMA, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
             intermediate_size=2048),
        dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)),
    "llama-1.1b": PeerModel(
        "LlamaConfig",
        dict(LLAMA, hidden_size=2048, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
             intermediate_size=5632),
        dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, intermediate_size=96)),
    "mamba2-130m": PeerModel(
        "Mamba2Config",
        dict(COMMON, hidden_size=768, num_hidden_layers=24, num_heads=24, head_dim=64, state_size=128, n_groups=1,
             expand=2, conv_kernel=4, chunk_size=64, use_bias=False, use_conv_bias=True),
        dict(hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, state_size=16, chunk_size=16)),
    # The published multipliers are left at 1: they would be folded into the weights, and bfloat16 would round them.
    "falcon_h1-350m": PeerModel(
        "FalconH1Config",
        dict(LLAMA, hidden_size=1024, num_hidden_layers=22, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
             intermediate_size=2048, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64, mamba_d_state=128,
             mamba_n_groups=1, mamba_d_conv=4, mamba_chunk_size=64, mamba_rms_norm=False),
        dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=16, intermediate_size=96,
             mamba_d_ssm=128, mamba_n_heads=4, mamba_d_head=32, mamba_d_state=16, mamba_chunk_size=16)),
    "lfm2-350m": PeerModel(
        "Lfm2Config",
        dict(COMMON, vocab_size=65536, tie_word_embeddings=True, hidden_size=1024, num_hidden_layers=16,
             num_attention_heads=16, num_key_value_heads=8, intermediate_size=6656, conv_L_cache=3,
             layer_types=layers(16, "conv", "full_attention", at=(2, 5, 8, 10, 12, 14)), max_position_embeddings=128000),
        dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
             block_multiple_of=16, layer_types=layers(3, "conv", "full_attention", at=(1,)))),
    # Fewer and narrower experts than published, and half the width: 0.5 billion weights. A token reads 0.2 billion.
    "qwen3_next-0.5b": PeerModel(
        "Qwen3NextConfig",
        dict(LLAMA, hidden_size=1024, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2, head_dim=256,
             linear_num_key_heads=8, linear_num_value_heads=16, num_experts=32, num_experts_per_tok=4,
             moe_intermediate_size=256, shared_expert_intermediate_size=256),
        dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)),
    # OLMoE's experts: many small ones. Each token takes 8.
    "qwen3_moe-0.5b": PeerModel(
        "Qwen3MoeConfig",
        dict(LLAMA, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, head_dim=64,
             intermediate_size=512, moe_intermediate_size=512, num_experts=32, num_experts_per_tok=8,
             norm_topk_prob=True),
        dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
             intermediate_size=32, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)),
    # Without YaRN, whose bounds llama.cpp rounds.
    "gpt_oss-0.5b": PeerModel(
        "GptOssConfig",
        dict(LLAMA, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
             intermediate_size=1024, num_local_experts=16, num_experts_per_tok=4,
             rope_parameters=dict(rope_type="default", rope_theta=150000.0)),
        dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=32, num_local_experts=8, num_experts_per_tok=2)),
    "gemma3-270m": PeerModel(
        "Gemma3TextConfig",
        dict(COMMON, vocab_size=262144, tie_word_embeddings=True, hidden_size=640, num_hidden_layers=18,
             num_attention_heads=4, num_key_value_heads=1, head_dim=256, intermediate_size=2048, sliding_window=512,
             max_position_embeddings=40960),
        dict(hidden_size=64, num_hidden_layers=6, num_attention_heads=4, head_dim=32, intermediate_size=96,
             sliding_window=8, query_pre_attn_scalar=32)),
}


def tiny(name):
    model = MODELS[name]
    return dataclasses.replace(model, fields=dict(model.fields, vocab_size=512, **model.tiny))


def zero_centred(name, model_type):
    """Whether this norm's weight is the difference from 1."""
    return model_type == "gemma3_text" or model_type == "qwen3_next" and not name.endswith("linear_attn.norm.weight")


def draw(name, shape, config, generator):
    """Draws one parameter in float32, by its name."""
    import torch

    def normal(std):
        return torch.randn(shape, generator=generator) * std

    def uniform(low, high):
        return torch.rand(shape, generator=generator) * (high - low) + low

    kind = name.split(".")[-2] if name.endswith((".weight", ".bias")) else name.split(".")[-1]
    if kind == "A_log":
        return uniform(1, 16).log()
    if kind == "dt_bias":  # steps of 0.001 to 0.1, before their softplus
        step = uniform(math.log(1e-3), math.log(1e-1)).exp()
        return step + torch.log(-torch.expm1(-step))
    if kind in ("conv1d", "conv") and len(shape) == 3:
        return normal(0.5)
    if name.endswith("bias"):
        return normal(0.1)
    if kind == "sinks":
        return normal(1)
    if kind == "embedding_norm":  # lfm2's last: of both signs, so that no token is likely to follow itself
        return normal(1)
    if len(shape) == 1:  # norms, and D
        return normal(0.1) if zero_centred(name, config.model_type) else 1 + normal(0.1)
    if kind in ("embed_tokens", "embeddings"):  # of a tied head: so that no token is likely to follow itself
        return normal(config.hidden_size ** -0.5 * TIED_GAIN if config.tie_word_embeddings else 1)
    gain = {"lm_head": 2, "q_proj": 1.4, "k_proj": 1.4, **dict.fromkeys(ROUTERS, ROUTER_GAIN)}.get(kind, 1)
    if kind in ("o_proj", "down_proj", "out_proj", "w2"):
        gain = config.num_hidden_layers ** -0.5
        if config.model_type == "lfm2":  # as small as the embedding that the layers add to
            gain *= config.hidden_size ** -0.5 * TIED_GAIN
    inputs = shape[1] if len(shape) == 2 or config.model_type == "gpt_oss" else shape[2]  # gpt_oss multiplies from the left
    return normal(gain * inputs ** -0.5)


def tokenizer_json(vocab_size):
    """A byte-level vocabulary of made-up words: ids decode to text, as they would in service."""
    words = ("\u0120" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    specials = ["<s>", "</s>", "<pad>"]
    tokens = itertools.islice(itertools.chain(specials, string.ascii_lowercase, words), vocab_size)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, token in enumerate(specials)],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }


def make_checkpoint(model, folder, device="cpu"):
    """config.json, model.safetensors in bfloat16 and tokenizer.json into the existing `folder`. device: draws them."""
    import torch
    import transformers
    from safetensors.torch import save_file

    config = getattr(transformers, model.config)(**model.fields)
    with torch.device("meta"):
        skeleton = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator(device).manual_seed(7)
    with torch.device(device):
        weights = {name: draw(name, parameter.shape, config, generator).to(torch.bfloat16)
                   for name, parameter in skeleton.named_parameters()}
    config.architectures = [type(skeleton).__name__]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(config.vocab_size)))


def config_of(checkpoint):
    return json.loads((pathlib.Path(checkpoint) / "config.json").read_text())


def cache_root():
    return pathlib.Path(os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))) / "peers"


def digest(*parts):
    return hashlib.sha256(b"\0".join(part if isinstance(part, bytes) else repr(part).encode()
                                     for part in parts)).hexdigest()[:16]


def made_once(folder, make):
    """`folder`, filled by make(temporary folder) unless it exists; what an older version of it left is deleted."""
    if not folder.exists():
        prefix = folder.name[:-16]  # what comes before the digest
        for old in folder.parent.glob(prefix + "*"):
            if len(old.name.removesuffix(".tmp")) == len(folder.name):
                shutil.rmtree(old)
        temporary = folder.with_name(folder.name + ".tmp")
        temporary.mkdir(parents=True)
        make(temporary)
        temporary.rename(folder)
    return folder


def checkpoint(name):
    """The folder of MODELS[name], made if need be."""
    key = digest(pathlib.Path(__file__).read_bytes(), MODELS[name])
    return made_once(cache_root() / f"{name}-{key}", lambda folder: make_checkpoint(MODELS[name], folder))


def drop(name):
    """Deletes the checkpoints of this name, and with them what engines made of them: several GB each."""
    for folder in cache_root().glob(f"{name}-*"):
        shutil.rmtree(folder)
