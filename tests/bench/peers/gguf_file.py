"""Writes a checkpoint of models.py as a GGUF file, the format of llama.cpp, with the same weights.

What differs from the Hugging Face files: names; metadata in place of config.json; llama's q and k rows, which llama.cpp
rotates in pairs of neighbours instead of halves; A, stored as -exp(A_log); convolutions without their middle
dimension. Vectors and convolutions are float32, as llama.cpp's kernels want them; matrices stay bfloat16, bit for bit.
The file has no vocabulary, as prompts are token ids, unless it is to follow grammars: these need each token's text.

To add an architecture: its METADATA and its layer's names in LAYER.
"""

import json
import pathlib

import gguf

ENDS = {"model.embed_tokens.weight": "token_embd.weight", "backbone.embeddings.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight", "model.final_layernorm.weight": "output_norm.weight",
        "backbone.norm_f.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
ATTENTION = {f"self_attn.{part}_proj.weight": f"attn_{name}.weight"
             for part, name in dict(q="q", k="k", v="v", o="output").items()}
MIXER = {"in_proj.weight": "ssm_in.weight", "out_proj.weight": "ssm_out.weight", "conv1d.weight": "ssm_conv1d.weight",
         "conv1d.bias": "ssm_conv1d.bias", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d",
         "norm.weight": "ssm_norm.weight"}


def mlp(prefix):
    return {f"{prefix}.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")}


LAYER = {
    "llama": {**ATTENTION, **mlp("mlp"), "input_layernorm.weight": "attn_norm.weight",
              "post_attention_layernorm.weight": "ffn_norm.weight"},
    "mamba2": {**{f"mixer.{part}": name for part, name in MIXER.items()}, "norm.weight": "attn_norm.weight"},
    # llama.cpp's name of the second norm has no ".weight" here.
    "falcon_h1": {**ATTENTION, **mlp("feed_forward"), **{f"mamba.{part}": name for part, name in MIXER.items()},
                  "input_layernorm.weight": "attn_norm.weight", "pre_ff_layernorm.weight": "ffn_norm"},
}


def attention_metadata(writer, config):
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def mixer_metadata(writer, kernel, inner, state, heads, groups):
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def llama_metadata(writer, config):
    attention_metadata(writer, config)
    writer.add_context_length(config["max_position_embeddings"])


def mamba2_metadata(writer, config):
    mixer_metadata(writer, config["conv_kernel"], config["num_heads"] * config["head_dim"], config["state_size"],
                   config["num_heads"], config["n_groups"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_context_length(1 << 20)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)


def falcon_h1_metadata(writer, config):
    multipliers = [value for field, value in config.items() if field.endswith(("_multiplier", "_multipliers"))]
    if any(value not in (1, [1.0] * 2, [1.0] * 5) for value in multipliers) or config["mamba_rms_norm"]:
        raise ValueError("falcon_h1: only multipliers of 1 and mixers without a norm are written")
    attention_metadata(writer, config)
    mixer_metadata(writer, config["mamba_d_conv"], config["mamba_d_ssm"], config["mamba_d_state"],
                   config["mamba_n_heads"], config["mamba_n_groups"])
    writer.add_context_length(config["max_position_embeddings"])


METADATA = {"llama": llama_metadata, "mamba2": mamba2_metadata, "falcon_h1": falcon_h1_metadata}


def neighbours_from_halves(weight, num_heads):
    """Rows of a rotated product: dimension i of a head's first half, then i of its second, instead of half by half."""
    head_dim = weight.shape[0] // num_heads
    return weight.reshape(num_heads, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def tensor_name(model_type, name):
    if name in ENDS:
        return ENDS[name]
    _, _, layer, rest = name.split(".", 3)  # model.layers.N.rest
    return f"blk.{layer}.{LAYER[model_type][rest]}"


def layout(config, name, tensor):
    """The tensor as llama.cpp has it."""
    import torch

    if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        tensor = neighbours_from_halves(tensor, heads)
    if name.endswith("A_log"):
        tensor = -torch.exp(tensor.float())
    if name.endswith(("A_log", ".D")):
        tensor = tensor.reshape(-1, 1)
    if name.endswith("conv1d.weight"):
        tensor = tensor.squeeze(1)
    if name.endswith("mixer.norm.weight"):
        tensor = tensor.reshape(config["n_groups"], -1)
    return tensor


def add_tensor(writer, name, tensor):
    import torch

    matrix = tensor.dim() == 2 and not name.endswith(("ssm_conv1d.weight", "ssm_norm.weight", "ssm_a", "ssm_d"))
    if matrix:
        bytes_ = tensor.contiguous().view(torch.uint8).numpy()  # numpy has no bfloat16
        writer.add_tensor(name, bytes_, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.float().contiguous().numpy())


def add_vocabulary(writer, tokenizer):
    """That of a byte-level tokenizer.json whose special tokens are <s>, </s> and <pad>, in this order."""
    model = json.loads(pathlib.Path(tokenizer).read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control] * 3 + [normal] * (len(tokens) - 3))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)


def write(checkpoint, path, vocabulary=False):
    """The checkpoint's folder as one file, with its tokenizer.json or without."""
    from safetensors import safe_open

    config = json.loads((pathlib.Path(checkpoint) / "config.json").read_text())
    model_type = config["model_type"]
    writer = gguf.GGUFWriter(path, model_type.replace("_", "-"))
    METADATA[model_type](writer, config)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_vocab_size(config["vocab_size"])
    if vocabulary:
        add_vocabulary(writer, pathlib.Path(checkpoint) / "tokenizer.json")
    else:
        writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    with safe_open(pathlib.Path(checkpoint) / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():
            add_tensor(writer, tensor_name(model_type, name), layout(config, name, tensors.get_tensor(name)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    writer.close()
