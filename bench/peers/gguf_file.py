"""Writes a checkpoint of models.py as a GGUF file, the format of llama.cpp, with the same weights.

These differ from the Hugging Face files: the names, and metadata in place of config.json. The q and k rows of llama are
permuted, because llama.cpp rotates pairs of neighbours instead of halves. A is stored as -exp(A_log), and convolutions
have no middle dimension. Vectors and convolutions are float32, as llama.cpp's kernels want them; matrices stay
bfloat16, bit for bit. Matrices of several products become one tensor each: experts' gate and up, a delta net's q, k, v
and z. Norms whose weight is the difference from 1 get the 1. The file has no vocabulary, as prompts are token ids,
unless it is to follow grammars: these need each token's text.

To add an architecture: its METADATA, its layer's names in LAYER, and what it has in one tensor in split().
"""

import json
import pathlib

import gguf

from models import zero_centred

ENDS = {"model.embed_tokens.weight": "token_embd.weight", "backbone.embeddings.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight", "model.final_layernorm.weight": "output_norm.weight",
        "backbone.norm_f.weight": "output_norm.weight", "model.embedding_norm.weight": "token_embd_norm.weight",
        "lm_head.weight": "output.weight"}
ATTENTION = {f"self_attn.{part}_proj.weight": f"attn_{name}.weight"
             for part, name in dict(q="q", k="k", v="v", o="output").items()}
MIXER = {"in_proj.weight": "ssm_in.weight", "out_proj.weight": "ssm_out.weight", "conv1d.weight": "ssm_conv1d.weight",
         "conv1d.bias": "ssm_conv1d.bias", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d",
         "norm.weight": "ssm_norm.weight"}


def mlp(prefix):
    return {f"{prefix}.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")}


ROUTED = {"mlp.experts.gate_proj": "ffn_gate_exps.weight", "mlp.experts.up_proj": "ffn_up_exps.weight",
          "mlp.experts.down_proj": "ffn_down_exps.weight"}
QK_NORMS = {"self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight"}
DELTA_NET = {"in_proj_qkv.weight": "attn_qkv.weight", "in_proj_z.weight": "attn_gate.weight",
             "in_proj_ba.weight": "ssm_ba.weight", "conv1d.weight": "ssm_conv1d.weight", "dt_bias": "ssm_dt.bias",
             "A_log": "ssm_a", "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight"}

LAYER = {
    "llama": {**ATTENTION, **mlp("mlp"), "input_layernorm.weight": "attn_norm.weight",
              "post_attention_layernorm.weight": "ffn_norm.weight"},
    "mamba2": {**{f"mixer.{part}": name for part, name in MIXER.items()}, "norm.weight": "attn_norm.weight"},
    # llama.cpp's name of the second norm has no ".weight" here.
    "falcon_h1": {**ATTENTION, **mlp("feed_forward"), **{f"mamba.{part}": name for part, name in MIXER.items()},
                  "input_layernorm.weight": "attn_norm.weight", "pre_ff_layernorm.weight": "ffn_norm"},
    "lfm2": {**ATTENTION, "self_attn.out_proj.weight": "attn_output.weight",
             "self_attn.q_layernorm.weight": "attn_q_norm.weight", "self_attn.k_layernorm.weight": "attn_k_norm.weight",
             "conv.conv.weight": "shortconv.conv.weight", "conv.in_proj.weight": "shortconv.in_proj.weight",
             "conv.out_proj.weight": "shortconv.out_proj.weight", "feed_forward.w1.weight": "ffn_gate.weight",
             "feed_forward.w3.weight": "ffn_up.weight", "feed_forward.w2.weight": "ffn_down.weight",
             "operator_norm.weight": "attn_norm.weight", "ffn_norm.weight": "ffn_norm.weight"},
    "qwen3_next": {**ATTENTION, **QK_NORMS, **ROUTED, **{f"linear_attn.{part}": name for part, name in DELTA_NET.items()},
                   "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
                   **{f"mlp.shared_expert.{part}_proj.weight": f"ffn_{part}_shexp.weight"
                      for part in ("gate", "up", "down")},
                   "input_layernorm.weight": "attn_norm.weight",
                   "post_attention_layernorm.weight": "post_attention_norm.weight"},
    "qwen3_moe": {**ATTENTION, **QK_NORMS, **ROUTED, "mlp.gate.weight": "ffn_gate_inp.weight",
              "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight"},
    "gpt_oss": {**ATTENTION, **{name.replace("weight", "bias"): to.replace("weight", "bias")
                                for name, to in ATTENTION.items()}, **ROUTED,
                **{f"{name}_bias": to.replace("weight", "bias") for name, to in ROUTED.items()},
                "self_attn.sinks": "attn_sinks.weight", "mlp.router.weight": "ffn_gate_inp.weight",
                "mlp.router.bias": "ffn_gate_inp.bias", "input_layernorm.weight": "attn_norm.weight",
                "post_attention_layernorm.weight": "post_attention_norm.weight"},
    "gemma3_text": {**ATTENTION, **QK_NORMS, **mlp("mlp"), "input_layernorm.weight": "attn_norm.weight",
                    "post_attention_layernorm.weight": "post_attention_norm.weight",
                    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
                    "post_feedforward_layernorm.weight": "post_ffw_norm.weight"},
}
ARCHITECTURE = {"qwen3_next": "qwen3next", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}  # where more differs than the hyphen
# Vectors, and what is one within its matrix.
FLOAT32 = ("ssm_conv1d.weight", "ssm_norm.weight", "ssm_a", "ssm_d", "shortconv.conv.weight", "_exps.bias",
           "ffn_gate_inp.weight")


def attention_metadata(writer, config, heads_kv=None):
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(heads_kv or config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config["rope_parameters"]
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_feed_forward_length(feed_forward(config))
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])


def feed_forward(config):
    """Its width. lfm2 takes two thirds of its field, rounded up."""
    width = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        width, multiple = int(2 * width / 3 * config["block_ffn_dim_multiplier"]), config["block_multiple_of"]
        width = -(-width // multiple) * multiple
    return width


def mixer_metadata(writer, kernel, inner, state, heads, groups):
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def lfm2_metadata(writer, config):
    attention_metadata(writer, config, [config["num_key_value_heads"] if kind == "full_attention" else 0
                                        for kind in config["layer_types"]])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_context_length(config["max_position_embeddings"])


def experts_metadata(writer, config):
    llama_metadata(writer, config)
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])


def qwen3_moe_metadata(writer, config):
    experts_metadata(writer, config)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def qwen3_next_metadata(writer, config):
    experts_metadata(writer, config)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    heads = config["linear_num_value_heads"]
    mixer_metadata(writer, config["linear_conv_kernel_dim"], heads * config["linear_value_head_dim"],
                   config["linear_key_head_dim"], heads, config["linear_num_key_heads"])
    writer.add_full_attention_interval(4)


def gpt_oss_metadata(writer, config):
    experts_metadata(writer, config)
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_sliding_window(config["sliding_window"])


def gemma3_metadata(writer, config):
    llama_metadata(writer, config)
    writer.add_sliding_window(config["sliding_window"])


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


METADATA = {"llama": llama_metadata, "mamba2": mamba2_metadata, "falcon_h1": falcon_h1_metadata, "lfm2": lfm2_metadata,
            "qwen3_next": qwen3_next_metadata, "qwen3_moe": qwen3_moe_metadata, "gpt_oss": gpt_oss_metadata,
            "gemma3_text": gemma3_metadata}


def neighbours_from_halves(weight, num_heads):
    """Rows of a rotated product: dimension i of a head's first half, then i of its second, instead of half by half."""
    head_dim = weight.shape[0] // num_heads
    return weight.reshape(num_heads, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def split_qkvz(config, weight):
    """From q, k, v, z of one key head after another: [q, k, v of all heads, z of all heads]."""
    import torch

    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    heads = config["linear_num_key_heads"]
    values = config["linear_num_value_heads"] // heads * value
    parts = weight.reshape(heads, -1, weight.shape[1]).split([key, key, values, values], 1)
    q, k, v, z = (part.reshape(-1, weight.shape[1]) for part in parts)
    return torch.cat([q, k, v]), z


def split(config, name, tensor):
    """[(name, tensor)] with one product each."""
    if name.endswith("in_proj_qkvz.weight"):
        qkv, z = split_qkvz(config, tensor)
        return [(name.replace("qkvz", "qkv"), qkv), (name.replace("qkvz", "z"), z)]
    if "experts." not in name or name.endswith(".weight"):
        return [(name, tensor)]
    left = config["model_type"] == "gpt_oss"  # x @ weight, gate and up in turn; otherwise weight @ x, one after the other
    if left and not name.endswith("_bias"):
        tensor = tensor.transpose(1, 2)
    if "gate_up_proj" not in name:
        return [(name, tensor)]
    gate, up = (tensor[:, ::2], tensor[:, 1::2]) if left else tensor.chunk(2, 1)
    return [(name.replace("gate_up", "gate"), gate), (name.replace("gate_up", "up"), up)]


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
    if len(tensor.shape) == 1 and name.endswith("norm.weight") and zero_centred(name, config["model_type"]):
        return tensor.float() + 1
    if name.endswith("shared_expert_gate.weight"):
        return tensor.flatten()
    if name.endswith("conv.conv.weight"):
        return tensor.squeeze(1)
    if config["model_type"] == "qwen3_next" and name.endswith("A_log"):
        return tensor
    if name.endswith(("A_log", ".D")):
        tensor = tensor.reshape(-1, 1)
    if name.endswith("conv1d.weight"):
        tensor = tensor.squeeze(1)
    if name.endswith("mixer.norm.weight"):
        tensor = tensor.reshape(config["n_groups"], -1)
    return tensor


def add_tensor(writer, name, tensor):
    import torch

    matrix = tensor.dim() >= 2 and not name.endswith(FLOAT32)
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
    writer = gguf.GGUFWriter(path, ARCHITECTURE.get(model_type, model_type.replace("_", "-")))
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
            for part, tensor in split(config, name, tensors.get_tensor(name)):
                add_tensor(writer, tensor_name(model_type, part), layout(config, part, tensor))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    writer.close()
