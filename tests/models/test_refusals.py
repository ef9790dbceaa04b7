"""What a configuration asks for and the server does not have is refused at load, by field and value.

Every row starts berth-server on a copy of a bundled checkpoint whose config.json is the row's. A configuration is read
whole before the first tensor, so the weights need not fit. To add a row: the family's fields (SIZES and what its
builder requires), the field and its bad value, and words that the message must have.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, SERVER  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/gemma3-demo")

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)
MAMBA = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8)
MAMBA2 = dict(MAMBA, num_heads=4, head_dim=16, n_groups=1)
MIXERS = dict(SIZES, mamba_n_heads=4, mamba_d_state=8)
NEMOTRON = dict(SIZES, layers_block_type=["linear_attention", "full_attention"], mamba_num_heads=4, n_groups=2)
ZAMBA = dict(SIZES, layers_block_type=["linear_attention", "hybrid"], n_mamba_heads=4)
SIDES = dict(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
             decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48)
GPT_OSS = dict(SIZES, num_local_experts=4, rope_parameters=dict(rope_type="default", rope_theta=1e4))
FAMILIES = {
    "bamba": MIXERS, "bart": SIDES, "cohere2": SIZES, "exaone4": SIZES, "falcon_h1": MIXERS, "falcon_mamba": MAMBA,
    "gemma2": SIZES, "gemma3_text": SIZES, "gemma3n_text": dict(SIZES, num_kv_shared_layers=0), "gpt_oss": GPT_OSS,
    "granitemoehybrid": MIXERS, "jamba": SIZES, "lfm2": SIZES, "lfm2_moe": dict(SIZES, layer_types=["conv", "conv"]),
    "llama": SIZES, "llama4_text": SIZES, "m2m_100": SIDES, "mamba": MAMBA, "mamba2": MAMBA2, "mistral": SIZES,
    "mixtral": dict(SIZES, num_local_experts=4), "nemotron_h": NEMOTRON, "olmo3": SIZES, "olmo_hybrid": SIZES,
    "phi3": SIZES, "qwen2": SIZES, "qwen3": SIZES, "qwen3_5_moe_text": SIZES, "qwen3_5_text": SIZES,
    "qwen3_moe": dict(SIZES, num_experts=4), "qwen3_next": SIZES, "recurrent_gemma": SIZES, "smollm3": SIZES,
    "t5": dict(vocab_size=64), "zamba": ZAMBA, "zamba2": ZAMBA,
}
WRAPPERS = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "llama4": "llama4_text", "qwen3_5": "qwen3_5_text",
            "qwen3_5_moe": "qwen3_5_moe_text"}

ROPE = dict(rope_type="wound", rope_theta=1e4, factor=2.0)
BY_TYPE = dict(full_attention=ROPE, sliding_attention=ROPE)
NO_ROPE = {"bart", "falcon_mamba", "granitemoehybrid", "jamba", "m2m_100", "mamba", "mamba2", "nemotron_h", "t5",
           "zamba", "zamba2"}
ROPE_BY_TYPE = {"gemma3_text", "gemma3n_text", "olmo3"}
ACTIVATION = {"bart": "activation_function", "m2m_100": "activation_function", "t5": "feed_forward_proj",
              "gemma2": "hidden_activation", "gemma3_text": "hidden_activation", "gemma3n_text": "hidden_activation",
              "recurrent_gemma": "hidden_activation", "nemotron_h": "mlp_hidden_act"}
NO_ACTIVATION = {"lfm2", "lfm2_moe"}  # always silu
LAYER_TYPES = ["cohere2", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gpt_oss", "lfm2", "lfm2_moe",
               "llama4_text", "olmo3", "olmo_hybrid", "qwen2", "qwen3", "qwen3_5_text", "qwen3_next", "smollm3"]

ROWS = [
    *[(family, "quantization_config", {"quant_method": "gptq"}, ["quant_method", '"gptq"']) for family in FAMILIES],
    *[(family, "rope_parameters", BY_TYPE if family in ROPE_BY_TYPE else ROPE, ["rope_type", '"wound"'])
      for family in FAMILIES if family not in NO_ROPE],
    *[(family, ACTIVATION.get(family, "hidden_act"), "tanhshrink", [ACTIVATION.get(family, "hidden_act"),
                                                                    '"tanhshrink"'])
      for family in FAMILIES if family not in NO_ACTIVATION],
    *[(family, "layer_types", ["full_attention", "spiral_attention"], ["layer_types", '"spiral_attention"'])
      for family in LAYER_TYPES],
    ("granitemoehybrid", "layer_types", ["full_attention", "spiral_attention"], ["layer_types", '"spiral_attention"']),
    ("nemotron_h", "layers_block_type", ["linear_attention", "spiral"], ["layers_block_type", '"spiral"']),
    ("nemotron_h", "mamba_hidden_act", "relu", ["mamba_hidden_act", '"relu"']),
    ("nemotron_h", "n_group", 3, ["n_group: 3"]),
    ("zamba", "layers_block_type", ["linear_attention", "spiral"], ["layers_block_type", '"spiral"']),
    ("zamba", "hidden_mamba_act", "relu", ["hidden_mamba_act", '"relu"']),
    ("zamba2", "layers_block_type", ["linear_attention", "spiral"], ["layers_block_type", '"spiral"']),
    ("zamba2", "mamba_headdim", 5, ["mamba_headdim: 5"]),
    ("zamba2", "hybrid_layer_ids", [0, 1], ["hybrid_layer_ids: [0,1]"]),
    ("zamba2", "use_long_context", True, ["use_long_context: true"]),
    ("recurrent_gemma", "block_types", ["recurrent", "spiral"], ["block_types", '"spiral"']),
    # The convolution of a mixer has the same activation, and only silu.
    ("falcon_h1", "hidden_act", "gelu", ["hidden_act", '"gelu"']),
    ("bamba", "hidden_act", "gelu", ["hidden_act", '"gelu"']),
    ("jamba", "hidden_act", "gelu", ["hidden_act", '"gelu"']),
    ("mamba", "hidden_act", "gelu", ["hidden_act", '"gelu"']),
    ("qwen3_next", "hidden_act", "gelu", ["hidden_act", '"gelu"']),
    ("bamba", "mamba_d_head", 5, ["mamba_d_head: 5"]),
    ("falcon_h1", "mamba_d_head", 5, ["mamba_d_head: 5"]),
    ("cohere2", "use_qk_norm", True, ["use_qk_norm: true"]),
    ("gemma2", "use_bidirectional_attention", True, ["use_bidirectional_attention: true"]),
    ("gemma3_text", "use_bidirectional_attention", True, ["use_bidirectional_attention: true"]),
    ("qwen3_next", "attn_output_gate", False, ["attn_output_gate: false"]),
    # In phi3's configuration yarn was a name of longrope.
    ("phi3", "rope_parameters", dict(ROPE, rope_type="yarn"), ["rope_type", '"yarn"']),
    ("llama", "rope_parameters", dict(rope_type="linear", rope_theta=1e4), ["factor", "needed"]),
    ("llama", "rope_parameters", dict(rope_type="llama3", rope_theta=1e4, factor=2.0), ["low_freq_factor", "needed"]),
    ("t5", "dense_act_fn", "tanhshrink", ["dense_act_fn", '"tanhshrink"']),
    ("mixtral", "num_experts_per_tok", 5, ["num_experts_per_tok: 5"]),
    ("gpt_oss", "num_experts_per_tok", 5, ["num_experts_per_tok: 5"]),
    ("llama", "num_key_value_heads", 3, ["num_attention_heads: 4"]),
]


def refusal(folder, config):
    """What the server says of the configuration; it must not start."""
    shutil.copytree(DEMO, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".berth"))
    (folder / "config.json").write_text(json.dumps(config))
    result = subprocess.run([SERVER, f"--model={folder}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result.stderr
    return result.stderr.strip().splitlines()[-1]


def names(row):
    return f"{row[0]}-{row[1]}-{row[2]}"[:60]


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_refuses(row, tmp_path):
    family, field, value, words = row
    message = refusal(tmp_path, {"model_type": family, **FAMILIES[family], field: value})
    assert message.startswith("berth-server: config.json: "), message
    for word in words:
        assert word in message, message


def test_the_rows_are_of_every_family():
    listed = subprocess.run([SERVER, "--list_models"], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()[2:]} == {*FAMILIES, *WRAPPERS}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_rows_change_is_accepted(family, tmp_path):
    """Else a row could be refused for another reason than its value: of these only the tensors are wrong."""
    message = refusal(tmp_path, {"model_type": family, **FAMILIES[family]})
    assert message.startswith(("berth-server: checkpoint: ", "berth-server: the checkpoint has ")), message


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_refuse_what_is_inside_and_outside(wrapper, tmp_path):
    inner = WRAPPERS[wrapper]
    text = {"model_type": inner, **FAMILIES[inner]}
    packed = {"quantization_config": {"quant_method": "gptq"}}
    for config, word in (({"text_config": dict(text, **packed)}, "text_config.quantization_config.quant_method"),
                         ({"text_config": text, **packed}, "config.json: quantization_config.quant_method"),
                         ({"text_config": dict(text, model_type="llama")}, 'text_config.model_type: "llama"')):
        assert word in refusal(tmp_path, {"model_type": wrapper, **config})


def test_an_unknown_model_type_lists_the_known_ones(tmp_path):
    message = refusal(tmp_path, {"model_type": "gpt5", **SIZES})
    assert 'model_type: "gpt5"' in message
    assert all(family in message for family in FAMILIES)
