"""What a configuration asks for and the server does not have is refused at load, by field and value.

Every row starts berth-server on a copy of a bundled checkpoint whose config.json is the row's. A configuration is read
whole before the first tensor, so the weights need not fit. To add a row: the family, the field and its bad value, and words that the message must have. families/configs.json has
each family's other fields.
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

with open(os.path.join(ROOT, "tests/models/families/configs.json")) as file:
    FAMILIES = json.load(file)
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
               "llama4_text", "ministral", "mistral", "olmo3", "olmo_hybrid", "qwen2", "qwen3", "qwen3_5_text",
               "qwen3_next", "smollm3"]

ROWS = [
    *[(family, "quantization_config", {"quant_method": "gptq"}, ["quant_method", '"gptq"']) for family in FAMILIES],
    *[(family, "rope_parameters", BY_TYPE if family in ROPE_BY_TYPE else ROPE, ["rope_type", '"wound"'])
      for family in FAMILIES if family not in NO_ROPE],
    *[(family, ACTIVATION.get(family, "hidden_act"), "tanhshrink", [ACTIVATION.get(family, "hidden_act"),
                                                                    '"tanhshrink"'])
      for family in FAMILIES if family not in NO_ACTIVATION],
    *[(family, "layer_types", ["full_attention", "spiral_attention"], ["layer_types", '"spiral_attention"'])
      for family in LAYER_TYPES],
    ("llama", "per_layer_config", {"1": {"sliding_window": 4}}, ["per_layer_config", "is not implemented"]),
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
    ("qwen3", "is_causal", False, ["is_causal: false"]),
    ("lfm2", "architectures", ["Lfm2BidirectionalModel"], ["architectures", "Lfm2BidirectionalModel"]),
    ("qwen3_next", "attn_output_gate", False, ["attn_output_gate: false"]),
    # In phi3's configuration yarn was a name of longrope.
    ("phi3", "rope_parameters", dict(ROPE, rope_type="linear", factor=2.0), ["rope_type", '"linear"']),
    ("llama", "rope_parameters", dict(rope_type="linear", rope_theta=1e4), ["factor", "needed"]),
    ("llama", "rope_parameters", dict(rope_type="llama3", rope_theta=1e4, factor=2.0), ["low_freq_factor", "needed"]),
    ("t5", "dense_act_fn", "tanhshrink", ["dense_act_fn", '"tanhshrink"']),
    ("mixtral", "num_experts_per_tok", 5, ["num_experts_per_tok: 5"]),
    ("gpt_oss", "num_experts_per_tok", 5, ["num_experts_per_tok: 5"]),
    ("gpt_oss", "swiglu_alpha", -1.702, ["swiglu_alpha: -1.702 is outside [1e-06, 1e+06]"]),
    ("gpt_oss", "swiglu_limit", 0, ["swiglu_limit: 0 is outside [1e-06, inf]"]),
    ("gpt_oss", "swiglu_limit", "none", ['swiglu_limit: "none"']),
    ("llama", "num_key_value_heads", 3, ["num_attention_heads: 4"]),
    ("llama", "rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.4,
                                  "original_max_position_embeddings": 64},
     ["partial_rotary_factor", "3 of a head's 8"]),
    ("phi3", "rope_parameters", dict(rope_type="longrope", short_factor=[1.0] * 3, long_factor=[1.0] * 3),
     ["3 short factors and 3 long ones; half the rotated dimensions is 4"]),
    ("qwen3_moe", "num_experts_per_tok", None, ["num_experts_per_tok: (absent) means 8", "of 4 experts"]),
    ("recurrent_gemma", "intermediate_size", 1, ["intermediate_size: 1"]),
    ("nemotron_h", "layers_block_type", ["mlp"] * 5000, ["5000"]),
]


def refusal(folder, config):
    """What the server says of the configuration; it must not start."""
    shutil.copytree(DEMO, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".berth"))
    (folder / "config.json").write_text(json.dumps(config))
    result = subprocess.run([SERVER, f"--model={folder}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0"],
                            capture_output=True, text=True, timeout=300)
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
    listed = subprocess.run([SERVER, "--list_models"], capture_output=True, text=True, check=True, timeout=300).stdout
    assert {line.split()[1] for line in listed.splitlines()[2:]} == {*FAMILIES, *WRAPPERS}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_rows_change_is_accepted(family, tmp_path):
    """Else a row could be refused for another reason than its value: of these only the tensors are wrong."""
    message = refusal(tmp_path, {"model_type": family, **FAMILIES[family]})
    assert message.startswith(("berth-server: checkpoint: ", "berth-server: the checkpoint has ")), message


@pytest.mark.parametrize("family", ["bart", "gemma3_text", "llama4_text", "mixtral", "t5", "zamba2"])
def test_a_checkpoint_that_does_not_fit_is_refused_without_memory_for_the_model(family, tmp_path):
    vast = {key: 1 << 20 for key in ("hidden_size", "d_model", "intermediate_size", "encoder_ffn_dim", "d_ff")}
    message = refusal(tmp_path, {**FAMILIES[family], **vast, "vocab_size": 1 << 24, "model_type": family})
    assert message.startswith("berth-server: checkpoint: "), message


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
    message = refusal(tmp_path, {"model_type": "gpt5", **FAMILIES["llama"]})
    assert 'model_type: "gpt5"' in message
    assert all(family in message for family in FAMILIES)
